#include "tools/bench.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <random>

#include "tools/sequence.h"

namespace heirloom::tools {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::vector<std::int32_t> random_tokens(int count, int vocab, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % static_cast<unsigned>(vocab));
  return ids;
}

void feed_in_chunks(Sequence& sequence, const std::vector<std::int32_t>& ids, int chunk) {
  for (std::size_t at = 0; at < ids.size(); at += static_cast<std::size_t>(chunk)) {
    const std::size_t count = std::min<std::size_t>(static_cast<std::size_t>(chunk), ids.size() - at);
    const auto rows = static_cast<std::int32_t>(count);
    const bool last = at + count == ids.size();
    if (last) sequence.feed_greedy({ids.data() + at, count});
    else sequence.feed({ids.data() + at, count}, text_positions(sequence.num_tokens(), rows), {}, {});
  }
}

struct Test {
  BenchResult result;
  std::vector<double> tok_s;
};

class Bench {
 public:
  Bench(model::Model& model, const BenchMachine& machine, const BenchOptions& options)
      : model_(model), machine_(machine), options_(options), vocab_(model.config().text.vocab_size) {
    for (const int depth : options.depth) {
      for (const int n : options.prefill) tests_.push_back({{"prefill", n, depth}, {}});
      for (const int n : options.decode) tests_.push_back({{"decode", n, depth}, {}});
    }
  }

  std::vector<BenchResult> run() {
    const double total = static_cast<double>(tests_.size()) * (options_.repeat + 1);
    double done = 0;
    for (int round = 0; round <= options_.repeat; ++round) {  // round 0 warms up and is not counted
      for (Test& test : tests_) {
        const double rate = run_once(test.result, static_cast<unsigned>(round));
        if (round > 0) test.tok_s.push_back(rate);
        done += 1;
        if (options_.progress) options_.progress(done / total, "bench");
      }
    }
    std::vector<BenchResult> results;
    for (Test& test : tests_) results.push_back(summarise(test));
    return results;
  }

 private:
  /// A sequence of `depth` tokens; computed once, then copied.
  Sequence at_depth(int depth) {
    const auto [found, is_new] = contexts_.try_emplace(depth, model_, options_.kv_type);
    if (is_new && depth > 0) feed_in_chunks(found->second, random_tokens(depth, vocab_, 1), options_.chunk_tokens);
    return found->second.fork();
  }

  double run_once(const BenchResult& test, unsigned seed) {
    Sequence sequence = at_depth(test.depth);
    sequence.reserve(test.depth + test.n + 1);
    const std::vector<std::int32_t> ids = random_tokens(test.n, vocab_, seed + 2);
    if (test.test == "decode" && test.depth == 0) {  // a decode step needs a token before it
      sequence.feed_greedy({&ids[0], 1});
    }
    const Clock::time_point start = Clock::now();
    if (test.test == "prefill") {
      feed_in_chunks(sequence, ids, options_.chunk_tokens);
    } else {
      for (const std::int32_t id : ids) sequence.feed_greedy({&id, 1});
    }
    return test.n / seconds_since(start);
  }

  BenchResult summarise(Test& test) const {
    BenchResult result = test.result;
    std::sort(test.tok_s.begin(), test.tok_s.end());
    result.min_tok_s = test.tok_s.front();
    result.max_tok_s = test.tok_s.back();
    result.median_tok_s = test.tok_s[test.tok_s.size() / 2];
    const ops::StateShape shape = model_.state_shape(options_.kv_type);
    const double state = 2.0 * static_cast<double>((shape.recurrent_floats() + shape.conv_floats()) * sizeof(float));
    const double kv_token = static_cast<double>(shape.page_bytes()) / ops::StateShape::kPageTokens;
    const double weights = static_cast<double>(model_.active_weight_bytes());
    // Decoding reads the weights, the state twice over and the KV entries of every earlier token. A prompt reads weights
    // once for all its tokens; its share of the bandwidth says little and is given for completeness.
    const double tokens = test.result.test == "decode" ? 1 : result.n;
    result.bytes_per_token = weights / tokens + state + kv_token * (result.depth + result.n / 2.0);
    if (machine_.read_bytes_per_s > 0) {
      result.bandwidth_share = result.bytes_per_token * result.median_tok_s / machine_.read_bytes_per_s;
    }
    if (machine_.ops_per_s > 0) {
      const double head = test.result.test == "decode" ? 1.0 : 1.0 / result.n;  // a prompt needs one row of logits
      const double parameters = static_cast<double>(model_.active_parameters(false)) +
                                head * static_cast<double>(model_.active_parameters(true) - model_.active_parameters(false));
      result.flops_share = 2 * parameters * result.median_tok_s / machine_.ops_per_s;
    }
    result.peak_rss_bytes = peak_rss_bytes();
    return result;
  }

  model::Model& model_;
  const BenchMachine& machine_;
  const BenchOptions& options_;
  int vocab_;
  std::vector<Test> tests_;
  std::map<int, Sequence> contexts_;  // by depth
};

}  // namespace

std::vector<BenchResult> bench(model::Model& model, const BenchMachine& machine, const BenchOptions& options) {
  return Bench(model, machine, options).run();
}

std::uint64_t peak_rss_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6)) * 1024;
  }
  return 0;
}

}  // namespace heirloom::tools
