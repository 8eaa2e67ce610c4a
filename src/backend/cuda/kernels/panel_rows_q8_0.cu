// Panels of q8_0 to rows: see panel_rows.h.
#include "backend/cuda/kernels/panel_rows.h"

PANEL_ROWS(q8_0, PanelQ8_0)
