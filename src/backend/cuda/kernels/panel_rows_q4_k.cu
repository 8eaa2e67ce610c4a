// Panels of q4_k to rows: see panel_rows.h.
#include "backend/cuda/kernels/panel_rows.h"

PANEL_ROWS(q4_k, PanelK45<false>)
