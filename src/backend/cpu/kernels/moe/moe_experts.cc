// Three parallel loops a layer after the router: rows gathered by expert (not for a single token), gate and up with SwiGLU
// and the quantisation of the result fused, and down with the weighted sum over experts. The shared expert is one more job.
#include "backend/cpu/kernels/moe/moe_experts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "backend/cpu/kernels/elementwise/elementwise.h"
#include "backend/cpu/kernels/linear/activations.h"
#include "backend/cpu/kernels/linear/linear.h"

namespace heirloom::cpu {
namespace {

// One expert and the rows that go through it.
struct Job {
  const PackedWeight *gate, *up, *down;
  std::int64_t expert;             // index inside the three weights
  const ExpertGroups::Group* group;  // null: the shared expert, which takes every token
  ActTiles gate_x, up_x;
  ActTiles hidden;  // silu(gate x) * up x in the form that down reads
  std::byte* hidden_data;
  std::int64_t first_unit;  // units of 32 intermediate values, numbered over all jobs
};

struct Kernels {
  const LinearKernels& linear;
  const ElementwiseKernels& elementwise;
};

// Memory kept between calls.
struct MoeScratch {
  Scratch integers, floats, gathered_integers, gathered_floats, hidden;
  Scratch logits, shared_logits, ids, weights, outputs;
  ExpertGroups groups;
  std::vector<Job> jobs;
};

const PackedWeight* packed(const ops::Weight* weight) { return static_cast<const PackedWeight*>(weight); }
bool is_integer(const PackedWeight* weight) { return is_integer_type(weight->packed_type); }
float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// Copies the named rows of x into tiles of their own.
void gather(const ActTiles& x, std::span<const std::int32_t> rows, std::byte* data, const ActTiles& group) {
  const std::int64_t steps = x.row_bytes / x.entry_bytes;
  const auto entry = static_cast<std::size_t>(x.entry_bytes);
  for (std::int64_t i = 0; i < group.rows; ++i) {
    const std::int64_t row = rows[static_cast<std::size_t>(i)];
    const std::byte* from = x.tile(row / kMaxTileRows) + row % kMaxTileRows * x.entry_bytes;
    std::byte* to = data + i / kMaxTileRows * kMaxTileRows * x.row_bytes + i % kMaxTileRows * x.entry_bytes;
    const std::ptrdiff_t from_step = x.step_bytes(row / kMaxTileRows);
    const std::ptrdiff_t to_step = group.step_bytes(i / kMaxTileRows);
    for (std::int64_t s = 0; s < steps; ++s) std::memcpy(to + s * to_step, from + s * from_step, entry);
  }
}

// 32 intermediate values of every row of a job: gate, up, SwiGLU, and the result stored as down's input. `next` is the memory
// that will be read after this.
void compute_hidden(const Kernels& kernels, const Job& job, std::int64_t block, const std::byte* next) {
  const std::int64_t first_panel = block * (kBlock / kPanelRows);
  const std::int64_t last_panel = std::min(first_panel + kBlock / kPanelRows, job.gate->panels);
  const std::int64_t columns = std::min<std::int64_t>(kBlock, job.gate->rows - block * kBlock);
  for (std::int64_t t = 0; t < job.hidden.num_tiles(); ++t) {
    const int rows = job.hidden.tile_rows(t);
    alignas(64) float gate[kMaxTileRows * kBlock];
    alignas(64) float up[kMaxTileRows * kBlock];
    const auto product = [&](const PackedWeight& weight, const ActTiles& x, float* to, const std::byte* after) {
      const PanelKernel kernel = kernels.linear.panel[static_cast<int>(weight.packed_type)];
      for (std::int64_t p = first_panel; p < last_panel; ++p, to += kPanelRows) {
        const std::byte* panel = weight.panel(job.expert, p);
        kernel(panel, p + 1 < last_panel ? panel + weight.panel_bytes : after, weight.cols, x.tile(t), x.step_bytes(t), rows, to, kBlock);
      }
    };
    product(*job.gate, job.gate_x, gate, job.up->panel(job.expert, first_panel));
    product(*job.up, job.up_x, up, next);
    std::byte* tile = job.hidden_data + t * kMaxTileRows * job.hidden.row_bytes;
    for (int r = 0; r < rows; ++r) {
      float* values = gate + r * kBlock;
      kernels.elementwise.swiglu(values, up + r * kBlock, values, columns);
      if (is_integer(job.down)) {
        kernels.linear.quantize_row(values, kBlock, reinterpret_cast<ActBlock*>(tile) + block * rows + r, rows);
      } else {
        for (std::int64_t i = 0; i < columns; ++i) reinterpret_cast<float*>(tile)[(block * kBlock + i) * rows + r] = values[i];
      }
    }
  }
}

// Where down's results of one job go besides `out`; null pointers are not written.
struct Sums {
  ops::Matrix out;
  const float* shared_logits;  // [T]
  float* routed;               // [T, hidden]
  float* shared;               // [T, hidden]
  float* choice_outputs;       // [T, top_k, hidden]
};

// Columns [16 panel, 16 panel + 16) of the layer's output for every token.
void combine_panel(const Kernels& kernels, const ExpertGroups& groups, std::span<const Job> jobs, std::int64_t panel,
                   const Sums& sums) {
  const std::int64_t hidden = sums.out.cols;
  const std::int64_t column = panel * kPanelRows;
  const std::int64_t width = std::min<std::int64_t>(kPanelRows, hidden - column);
  const auto bytes = static_cast<std::size_t>(width) * sizeof(float);
  for (std::int64_t t = 0; t < sums.out.rows; ++t) std::memset(sums.out.data + t * hidden + column, 0, bytes);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const Job& job = jobs[i];
    const std::byte* next = i + 1 < jobs.size() ? jobs[i + 1].down->panel(jobs[i + 1].expert, panel)
                                                : jobs[0].down->panel(jobs[0].expert, std::min(panel + 1, jobs[0].down->panels - 1));
    if (job.group == nullptr && sums.routed != nullptr) {  // the shared job is the last one
      for (std::int64_t t = 0; t < sums.out.rows; ++t) {
        std::memcpy(sums.routed + t * hidden + column, sums.out.data + t * hidden + column, bytes);
      }
    }
    const PanelKernel kernel = kernels.linear.panel[static_cast<int>(job.down->packed_type)];
    const std::byte* weights = job.down->panel(job.expert, panel);
    for (std::int64_t t = 0; t < job.hidden.num_tiles(); ++t) {
      alignas(64) float values[kMaxTileRows * kPanelRows];
      const int rows = job.hidden.tile_rows(t);
      kernel(weights, next, job.down->cols, job.hidden.tile(t), job.hidden.step_bytes(t), rows, values, kPanelRows);
      for (int r = 0; r < rows; ++r) {
        const auto slot = static_cast<std::size_t>(t * kMaxTileRows + r);
        const float* from = values + r * kPanelRows;
        std::int64_t token;
        float weight;
        if (job.group != nullptr) {
          token = groups.tokens(*job.group)[slot];
          weight = groups.weights(*job.group)[slot];
          if (sums.choice_outputs != nullptr) {
            std::memcpy(sums.choice_outputs + groups.choices(*job.group)[slot] * hidden + column, from, bytes);
          }
        } else {
          token = static_cast<std::int64_t>(slot);
          weight = sigmoid(sums.shared_logits[slot]);
          if (sums.shared != nullptr) std::memcpy(sums.shared + token * hidden + column, from, bytes);
        }
        kernels.elementwise.add_scaled(from, weight, sums.out.data + token * hidden + column, width);
      }
    }
  }
}

template <typename T>
void copy_tap(T* tap, const T* values, std::int64_t count) {
  if (tap != nullptr) std::memcpy(tap, values, static_cast<std::size_t>(count) * sizeof(T));
}

}  // namespace

void moe_experts(ThreadPool& pool, CpuTier tier, ops::Matrix x, const ops::MoeWeights& weights, ops::Matrix out,
                 const ops::MoeTaps* taps, const MoeRouting* routing) {
  static thread_local MoeScratch scratch_of_thread;
  MoeScratch& scratch = scratch_of_thread;  // the loops below run on other threads too
  static constexpr ops::MoeTaps kNoTaps{};
  const ops::MoeTaps& tap = taps != nullptr ? *taps : kNoTaps;
  const Kernels kernels{linear_kernels(tier), elementwise_kernels(tier)};
  const std::int64_t tokens = x.rows;
  const std::int64_t num_experts = weights.gate->experts;
  const int top_k = weights.top_k;
  const std::int64_t choices = tokens * top_k;
  const bool has_shared = weights.shared_gate != nullptr;
  if (tokens == 0) return;

  // Router.
  float* logits = scratch.logits.get<float>(tokens * num_experts);
  float* shared_logits = scratch.shared_logits.get<float>(tokens);
  const std::int32_t* ids = nullptr;
  const float* expert_weights = nullptr;
  if (routing != nullptr) {
    ids = routing->ids;
    expert_weights = routing->weights;
  } else {
    const std::array routers{ops::LinearOut{weights.router, logits}, ops::LinearOut{weights.shared_router, shared_logits}};
    linear(pool, tier, x, std::span(routers).first(has_shared ? 2 : 1));
    auto* chosen = scratch.ids.get<std::int32_t>(choices);
    float* chosen_weights = scratch.weights.get<float>(choices);
    route_top_k(pool, logits, tokens, num_experts, top_k, chosen, chosen_weights);
    ids = chosen;
    expert_weights = chosen_weights;
  }
  scratch.groups.build(ids, expert_weights, tokens, top_k, num_experts);
  const ExpertGroups& groups = scratch.groups;

  // x in the forms that the weights want; for several tokens, every expert's rows side by side.
  const PackedWeight *gate = packed(weights.gate), *up = packed(weights.up), *down = packed(weights.down);
  const PackedWeight *shared_gate = packed(weights.shared_gate), *shared_up = packed(weights.shared_up);
  const PackedWeight* shared_down = packed(weights.shared_down);
  const bool routed_integer = is_integer(gate) || is_integer(up);
  const bool routed_float = !is_integer(gate) || !is_integer(up);
  const bool any_integer = routed_integer || (has_shared && (is_integer(shared_gate) || is_integer(shared_up)));
  const bool any_float = routed_float || (has_shared && !(is_integer(shared_gate) && is_integer(shared_up)));
  const ActTiles integers = any_integer ? quantize_tiles(pool, kernels.linear, x, scratch.integers) : ActTiles{};
  const ActTiles floats = any_float ? float_tiles(pool, x, scratch.floats) : ActTiles{};
  std::byte* gathered_integers = nullptr;
  std::byte* gathered_floats = nullptr;
  if (tokens > 1 && routed_integer) gathered_integers = scratch.gathered_integers.get(static_cast<std::size_t>(choices * integers.row_bytes));
  if (tokens > 1 && routed_float) gathered_floats = scratch.gathered_floats.get(static_cast<std::size_t>(choices * floats.row_bytes));

  const auto hidden_bytes = [](const PackedWeight* weight) {
    return is_integer(weight) ? integer_row_bytes(weight->cols) : float_row_bytes(weight->cols);
  };
  const std::int64_t routed_bytes = choices * hidden_bytes(down);
  std::byte* hidden = scratch.hidden.get(static_cast<std::size_t>(routed_bytes + (has_shared ? tokens * hidden_bytes(shared_down) : 0)));

  std::vector<Job>& jobs = scratch.jobs;
  jobs.clear();
  std::int64_t units = 0;
  const auto add_job = [&](const PackedWeight* g, const PackedWeight* u, const PackedWeight* d, const ExpertGroups::Group* group) {
    const std::int64_t rows = group != nullptr ? group->count : tokens;
    std::byte* data = hidden + (group != nullptr ? group->first * hidden_bytes(d) : routed_bytes);
    const auto rows_of = [&](const PackedWeight* weight) {
      const ActTiles& source = is_integer(weight) ? integers : floats;
      if (group == nullptr || tokens == 1) return source;
      const std::byte* base = is_integer(weight) ? gathered_integers : gathered_floats;
      return ActTiles{base + group->first * source.row_bytes, rows, source.row_bytes, source.entry_bytes};
    };
    jobs.push_back({g, u, d, group != nullptr ? group->expert : 0, group, rows_of(g), rows_of(u),
                    ActTiles{data, rows, hidden_bytes(d), is_integer(d) ? 64 : 4}, data, units});
    units += (g->rows + kBlock - 1) / kBlock;
  };
  for (const auto& group : groups.groups()) add_job(gate, up, down, &group);
  if (has_shared) add_job(shared_gate, shared_up, shared_down, nullptr);

  if (tokens > 1) {
    pool.parallel_for(static_cast<std::int64_t>(groups.groups().size()), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const auto& group = groups.groups()[static_cast<std::size_t>(i)];
        const auto rows = groups.tokens(group);
        const auto fill = [&](const ActTiles& source, std::byte* base) {
          if (base == nullptr) return;
          std::byte* data = base + group.first * source.row_bytes;
          gather(source, rows, data, ActTiles{data, group.count, source.row_bytes, source.entry_bytes});
        };
        fill(integers, gathered_integers);
        fill(floats, gathered_floats);
      }
    });
  }

  pool.parallel_for(units, 1, [&](std::int64_t begin, std::int64_t end) {
    auto job = std::upper_bound(jobs.begin(), jobs.end(), begin, [](std::int64_t unit, const Job& j) { return unit < j.first_unit; }) - 1;
    for (std::int64_t unit = begin; unit < end; ++unit) {
      while (job + 1 != jobs.end() && (job + 1)->first_unit <= unit) ++job;
      const std::int64_t block = unit - job->first_unit;
      const bool last_of_job = job + 1 != jobs.end() && (job + 1)->first_unit == unit + 1;
      const Job& after = last_of_job ? *(job + 1) : *job;
      const std::int64_t next_panel = last_of_job ? 0 : std::min((block + 1) * (kBlock / kPanelRows), job->gate->panels - 1);
      compute_hidden(kernels, *job, block, after.gate->panel(after.expert, next_panel));
    }
  });

  Sums sums{out, shared_logits, tap.experts, has_shared ? tap.shared_expert : nullptr, nullptr};
  if (tap.expert_out_norm != nullptr) sums.choice_outputs = scratch.outputs.get<float>(choices * out.cols);
  pool.parallel_for((out.cols + kPanelRows - 1) / kPanelRows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t panel = begin; panel < end; ++panel) combine_panel(kernels, groups, jobs, panel, sums);
  });

  if (routing == nullptr) copy_tap(tap.router_logits, logits, tokens * num_experts);
  copy_tap(tap.topk_indices, ids, choices);
  copy_tap(tap.topk_weights, expert_weights, choices);
  if (has_shared) copy_tap(tap.shared_gate_logit, shared_logits, tokens);
  if (!has_shared) copy_tap(tap.experts, out.data, tokens * out.cols);
  if (tap.expert_out_norm != nullptr) {
    pool.parallel_for(choices, 8, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t c = begin; c < end; ++c) {
        double sum = 0.0;
        for (std::int64_t j = 0; j < out.cols; ++j) {
          const double value = sums.choice_outputs[c * out.cols + j];
          sum += value * value;
        }
        tap.expert_out_norm[c] = static_cast<float>(std::sqrt(sum));
      }
    });
  }
}

}  // namespace heirloom::cpu
