// Which chunk a block of the chunked delta rule works on.
#pragma once

#include "backend/cuda/kernels/gpu.h"
#include "backend/cuda/kernels/step_table.h"

/// Where the state before chunk `index` of a sequence lies: slots that no two share.
DEVICE int gdn_slot(const StepSequence& s, int sequence, int index) { return s.first_row / 64 + 2 * sequence + index; }

/// Chunks lie at absolute positions (multiples of 64); the first may start inside one.
struct GdnChunk {
  int begin, rows;  // position of its first token; how many it has, <= 0: the sequence has no such chunk
  u64 row0, slot;   // its first row in the step; of the state before it
};
DEVICE GdnChunk gdn_chunk_of(const StepSequence& s, int sequence, int index) {
  GdnChunk c;
  const int chunk = s.past_tokens / 64 + index;
  c.begin = gpu_max_i(s.past_tokens, chunk * 64);
  c.rows = gpu_min_i(s.past_tokens + s.num_rows, chunk * 64 + 64) - c.begin;
  c.row0 = (u64)(s.first_row + c.begin - s.past_tokens);
  c.slot = (u64)gdn_slot(s, sequence, index);
  return c;
}
