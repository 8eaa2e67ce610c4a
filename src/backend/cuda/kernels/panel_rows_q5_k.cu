// Panels of q5_k to rows: see panel_rows.h.
#include "backend/cuda/kernels/panel_rows.h"

PANEL_ROWS(q5_k, PanelK45<true>)
