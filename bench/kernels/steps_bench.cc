// Time of a decode step of one and of several sequences, of the whole model: bench_steps MODEL [streams=8] [depth=60] [tokens=256] [rounds=7]
// [kv=f32]. Rounds take turns, so that both see the same machine; medians with minimum and maximum, and quantiles of all single steps of one
// stream, to hold against the gaps that a client of the server sees (bench/http_overhead.py).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "base/cpu_features.h"
#include "base/profiler_report.h"
#include "engine/session_state.h"
#include "model/model_files.h"

using namespace heirloom;
using Clock = std::chrono::steady_clock;

namespace {

/// Several timelines that take their steps together.
class Streams {
 public:
  Streams(model::Model& model, engine::StatePool& pool, int depth) : model_(model), pool_(pool) {
    engine::SessionState context(pool);
    std::vector<engine::SessionState*> one{&context};
    feed(one, std::vector<std::int32_t>(static_cast<std::size_t>(depth), 5));
    start_ = context.snapshot();
  }

  /// Milliseconds a step, on average.
  double run(int streams, int tokens) {
    std::vector<engine::SessionState> sessions;
    for (int i = 0; i < streams; ++i) sessions.emplace_back(pool_, *start_);
    std::vector<engine::SessionState*> all;
    for (engine::SessionState& session : sessions) all.push_back(&session);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(streams), 1);
    const auto begin = Clock::now();
    for (int t = 0; t < tokens; ++t) {
      const auto step = Clock::now();
      feed(all, ids);
      if (streams == 1) steps_.push_back(milliseconds(step));
      for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>((static_cast<std::size_t>(t) * 7 + i * 13) % 1000);
    }
    return milliseconds(begin) / tokens;
  }

  /// Of the steps of one stream.
  std::vector<double>& steps() { return steps_; }

 private:
  static double milliseconds(Clock::time_point since) { return std::chrono::duration<double, std::milli>(Clock::now() - since).count(); }

  /// The ids in equal shares, one share a session; logits and the best id of each one's last row.
  void feed(std::vector<engine::SessionState*>& sessions, const std::vector<std::int32_t>& ids) {
    const std::size_t rows = ids.size(), share = rows / sessions.size();
    model::StepInput input;
    input.plan.shape = pool_.shape();
    input.plan.num_rows = static_cast<std::int32_t>(rows);
    input.token_ids = ids;
    input.positions.resize(3 * rows);
    for (std::size_t i = 0; i < sessions.size(); ++i) {
      input.plan.sequences.push_back(sessions[i]->step(static_cast<std::int32_t>(i * share), static_cast<std::int32_t>(share)));
      for (std::size_t j = 0; j < 3 * share; ++j) {
        input.positions[j / share * rows + i * share + j % share] = static_cast<std::int32_t>(sessions[i]->position() + static_cast<std::int64_t>(j % share));
      }
      input.logits_rows.push_back(static_cast<std::int32_t>((i + 1) * share - 1));
    }
    const model::StepOutput output = model_.forward(input);
    best_.resize(sessions.size());
    model_.backend().argmax(output.logits, best_.data());
    for (engine::SessionState* session : sessions) session->advance(static_cast<std::int32_t>(share));
  }

  model::Model& model_;
  engine::StatePool& pool_;
  engine::SnapshotRef start_;
  std::vector<std::int32_t> best_;
  std::vector<double> steps_;
};

void show(const char* name, std::vector<double> values) {
  std::sort(values.begin(), values.end());
  std::printf("%s %.3f (%.3f-%.3f)", name, values[values.size() / 2], values.front(), values.back());
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
  if (argc < 2) return std::fprintf(stderr, "bench_steps MODEL [streams] [depth] [tokens] [rounds] [kv]\n"), 2;
  const int streams = number(2, 8), depth = number(3, 60), tokens = number(4, 256), rounds = number(5, 7);
  const DType kv = argc > 6 ? parse_dtype(argv[6]).value() : DType::f32;
  const model::ModelFiles files = model::open_model_files(argv[1], "");
  cpu::CpuBackendOptions options;
  options.tier = select_cpu_tier(std::nullopt);
  Profiler profiler;
  if (std::getenv("TIMINGS") != nullptr) options.profiler = &profiler;
  cpu::CpuBackend backend(options);
  const auto model = model::bind_model(files, backend, {});
  engine::StatePool pool(backend, model->state_shape(kv));
  Streams bench(*model, pool, depth);
  std::vector<double> one, many, ratio;
  for (int round = 0; round <= rounds; ++round) {
    const double a = bench.run(1, tokens);
    profiler.reset();
    const double b = bench.run(streams, tokens);
    if (round == 0) continue;
    one.push_back(a);
    many.push_back(b);
    ratio.push_back(streams * a / b);
  }
  show("1 stream: ms", one);
  std::printf("; %d streams: ", streams);
  show("ms", many);
  show("; tokens/s of one x", ratio);
  std::vector<double>& steps = bench.steps();
  std::sort(steps.begin(), steps.end());
  std::printf("\nsteps of 1 stream, %zu:", steps.size());
  for (const double share : {50.0, 90.0, 99.0, 99.9}) {
    std::printf(" p%g %.3f", share, steps[static_cast<std::size_t>(static_cast<double>(steps.size()) * share / 100)]);
  }
  std::printf(" ms\n");
  if (options.profiler != nullptr) std::printf("%s\n", timings_report(profiler).dump(1).c_str());
}
