// Panels of q8_x to rows: see panel_rows.h.
#include "backend/cuda/kernels/panel_rows.h"

PANEL_ROWS(q8_x, PanelQ8_X)
