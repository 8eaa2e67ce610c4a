// Panels of q4_0 to rows: see panel_rows.h.
#include "backend/cuda/kernels/panel_rows.h"

PANEL_ROWS(q4_0, PanelQ4_0)
