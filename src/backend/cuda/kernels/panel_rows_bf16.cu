// Panels of bf16 to rows: see panel_rows.h.
#include "backend/cuda/kernels/panel_rows.h"

PANEL_ROWS(bf16, PanelBf16)
