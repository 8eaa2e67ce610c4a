// q4_0 weights: see expert_token.h.
#include "backend/cuda/kernels/expert_token.h"

KERNEL_TOGETHER(expert_hidden_q4_0, kExpertBound, 2, const ExpertHiddenArgs p) {
  DYN_SHARED(u8, memory);
  expert_hidden<WarpQ4_0>(p, memory);
}
KERNEL_TOGETHER(expert_sum_q4_0, kExpertBound, 2, const ExpertSumArgs p) {
  DYN_SHARED(u8, memory);
  expert_sum<WarpQ4_0>(p, memory);
}
