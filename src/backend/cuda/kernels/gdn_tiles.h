// What the FP32 kernels of the chunked delta rule share.
#pragma once

#include "backend/cuda/kernels/quads.h"
#include "backend/cuda/kernels/step_table.h"

/// Where the states before the chunks of a sequence lie: chunk c is slot first_row / 64 + 2 sequence + c, which no two share.
DEVICE u64 gdn_first_slot(const StepSequence& s, int sequence) { return (u64)(s.first_row / 64 + 2 * sequence); }
