// Prefill and decode speed of a model at given depths, beside what the machine can do at most.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "model/model.h"

namespace heirloom::tools {

struct BenchOptions {
  std::vector<int> prefill{512};  // prompt lengths
  std::vector<int> decode{128};   // numbers of tokens
  std::vector<int> depth{0};      // tokens already there
  int repeat = 5;
  DType kv_type = DType::f16;
  int chunk_tokens = 512;         // rows of a prefill step; the engine's on the device at hand (largest_chunk)
  std::function<void(double fraction, std::string_view what)> progress;
};

/// The machine's limits as measured just before; 0 = unknown (a GPU).
struct BenchMachine {
  double read_bytes_per_s = 0, ops_per_s = 0;
};

struct BenchResult {
  std::string test;  // "prefill" or "decode"
  int n = 0, depth = 0;
  double min_tok_s = 0, median_tok_s = 0, max_tok_s = 0;
  double bytes_per_token = 0;  // weights used + recurrent state read and written + KV read
  double bandwidth_share = 0, flops_share = 0;  // of the machine, at the median
  std::uint64_t peak_rss_bytes = 0;
};

/// Tests are interleaved: each repetition runs every one once. Tokens are arbitrary; a real router would be more skewed.
std::vector<BenchResult> bench(model::Model& model, const BenchMachine& machine, const BenchOptions& options);

/// Highest resident memory of this process so far.
std::uint64_t peak_rss_bytes();

}  // namespace heirloom::tools
