// Panels of f32 to rows: see panel_rows.h.
#include "backend/cuda/kernels/panel_rows.h"

PANEL_ROWS(f32, PanelF32)
