// Panels of q6_k to rows: see panel_rows.h.
#include "backend/cuda/kernels/panel_rows.h"

PANEL_ROWS(q6_k, PanelQ6_K)
