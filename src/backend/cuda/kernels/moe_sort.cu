// Pairs (token, choice) sorted by expert, stable, so that an expert's tokens lie side by side: offsets[e] = first place of expert
// e, order[place] = pair. One block: a thread an expert (up to 1024) scans the ids, which are broadcast reads.
#include "backend/cuda/kernels/gpu.h"

KERNEL(moe_sort, 1024, int* offsets, int* order, const int* ids, int pairs, int experts) {
  SHARED int counts[1024];
  gpu_wait_inputs();
  const int e = tid_x();
  int count = 0;
  for (int i = 0; i < pairs; i++) count += ids[i] == e;
  counts[e] = count;
  gpu_sync();
  int first = 0;
  for (int j = 0; j < e; j++) first += counts[j];
  if (e < experts) {
    offsets[e] = first;
    if (e == experts - 1) offsets[experts] = first + count;
    for (int i = 0; i < pairs; i++) {
      if (ids[i] == e) order[first++] = i;
    }
  }
}
