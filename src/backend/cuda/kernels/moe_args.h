// Arguments of the tensor-core expert kernels; plain types, also included by host code.
#pragma once

struct MoeMmaArgs {
  const unsigned short* a;       // [inputs, k] bf16; pair p reads row p / rows_per_input
  const unsigned char* weight;   // experts x [n, k] in the format of the kernel; paired: gate
  const unsigned char* weight2;  // paired: up
  unsigned long long elements;   // of a weight, all experts that `weight` holds
  float* out;                    // [pairs, n]: not paired
  unsigned short* hidden;        // [pairs, n] bf16, silu(gate) * up: paired
  const int* offsets;            // moe_place
  const int* order;
  const int* tiles;
  int experts, n, k, rows_per_input;
  int expert_begin, expert_end;  // tiles of other experts are left alone
  int first_expert;              // whose rows `weight` starts with
};
