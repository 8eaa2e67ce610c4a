// Mixture of experts: router in f32 always; few rows take two kernels each (or a GEMV per (token, expert)), many rows are
// sorted by expert and multiplied in groups, on tensor cores where products are BF16. Experts that stay in host memory stream
// through expert_stream.h for many rows and are computed there (expert_host.h) for few.
#include <algorithm>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/kernels/moe_args.h"
#include "backend/cuda/launch_grids.h"
#include "base/check.h"

namespace heirloom::cuda {
namespace {

using u64 = unsigned long long;
constexpr std::int64_t kExpertGemvRows = 8;
constexpr int kMaxExperts = 1024, kMaxTopK = 64;
constexpr int kSortChunk = 256;  // pairs of a block of moe_count and moe_place
constexpr std::size_t kGemvSharedBytes = 36 * 1024;
// Unpacked weights of streamed experts that exist at once.
constexpr std::size_t kUnpackedBytes = std::size_t{256} << 20;

const PanelExperts* on_host(const ops::Weight* weight) { return dynamic_cast<const PanelExperts*>(weight); }
const CudaWeight& resident(const ops::Weight* weight) { return static_cast<const CudaWeight&>(*weight); }

}  // namespace

// Where the kernels find the weights of experts [begin, end): first_expert's rows come first.
struct CudaBackend::ExpertView {
  const unsigned char* data;
  u64 elements;
  const char* format;
  int first_expert;
};

// Pairs sorted by expert.
struct CudaBackend::ExpertOrder {
  int *offsets, *order, *tiles;
  int experts, pairs, tile_rows, most_tiles;
};

void CudaBackend::moe_ffn(ops::Matrix x, const ops::MoeWeights& weights, ops::Matrix out, const ops::MoeTaps* taps) {
  const int rows = static_cast<int>(x.rows), top_k = weights.top_k, pairs = rows * top_k;
  const int experts = static_cast<int>(weights.router->rows), inner = static_cast<int>(weights.gate->rows);
  if (experts > kMaxExperts || top_k > kMaxTopK) {
    fail(ErrorKind::bad_file, "{} experts with top {}: the GPU kernels take at most {} and {}; use --device cpu", experts, top_k,
         kMaxExperts, kMaxTopK);
  }
  const bool streamed = on_host(weights.gate) != nullptr;
  if (!taps && !streamed && token_experts(x, weights, out)) return;
  const ops::MoeTaps none;
  const ops::MoeTaps& tap = taps ? *taps : none;
  float* logits = tap.router_logits ? tap.router_logits : scratch_f32(kSlotRouter, static_cast<std::int64_t>(rows) * experts);
  auto* ids = tap.topk_indices ? tap.topk_indices : static_cast<std::int32_t*>(scratch(kSlotIds, static_cast<std::size_t>(pairs) * 4));
  float* top = tap.topk_weights ? tap.topk_weights : scratch_f32(kSlotTopWeights, pairs);

  // Router and the shared expert read the same input; the logits of both routers come from one call.
  float* shared_logit = nullptr;
  std::vector<ops::LinearOut> routers{{weights.router, logits}};
  if (weights.shared_gate) {
    shared_logit = tap.shared_gate_logit ? tap.shared_gate_logit : scratch_f32(kSlotSharedLogit, rows);
    routers.push_back({weights.shared_router, shared_logit});
  }
  linear_now(x, routers, true);
  flush_keeping_inputs();
  device_->launch("moe_route", {row_grid(rows)}, {256}, 0, static_cast<int*>(ids), top,
                  static_cast<const float*>(logits), rows, experts, top_k);

  if (!taps && !streamed && few_rows_experts(x, weights, ids, top, shared_logit, out)) return;

  float* shared = nullptr;
  const auto shared_expert = [&] {
    if (!weights.shared_gate) return;
    shared = tap.shared_expert ? tap.shared_expert : scratch_f32(kSlotShared, static_cast<std::int64_t>(rows) * out.cols);
    const std::int64_t width = weights.shared_gate->rows;
    const ops::Matrix g{scratch_f32(kSlotSharedGate, rows * width), rows, width};
    const ops::Matrix u{scratch_f32(kSlotSharedUp, rows * width), rows, width};
    const ops::LinearOut projections[] = {{weights.shared_gate, g.data}, {weights.shared_up, u.data}};
    linear(x, projections);
    swiglu(g, u, g);
    const ops::LinearOut projection{weights.shared_down, shared};
    linear(g, {&projection, 1});
    flush();
  };
  const float* routed_weights = top;
  float* expert_out = nullptr;
  if (streamed && !taps && rows <= options_.host_expert_rows) {
    expert_out = scratch_f32(kSlotExperts, static_cast<std::int64_t>(rows) * out.cols);
    experts_on_host(x, weights, ids, top, expert_out, shared_expert);
    routed_weights = nullptr;  // it is the weighted sum already
  } else {
    expert_out = scratch_f32(kSlotExperts, static_cast<std::int64_t>(pairs) * out.cols);
    const std::int64_t widest = std::max(weights.gate->cols, weights.down->cols);
    if (!streamed && x.rows <= kExpertGemvRows && resident(weights.gate).format == resident(weights.up).format &&
        static_cast<std::size_t>(widest) * 4 <= kGemvSharedBytes) {
      float* hidden = scratch_f32(kSlotGate, static_cast<std::int64_t>(pairs) * inner);
      expert_gemv(resident(weights.gate), &resident(weights.up), x.data, top_k, ids, pairs, nullptr, hidden);
      expert_gemv(resident(weights.down), nullptr, hidden, 1, ids, pairs, expert_out, nullptr);
    } else {
      grouped_experts(x, weights, ids, expert_out);
    }
    shared_expert();
  }
  device_->launch("moe_combine", {row_grid(rows)}, {256}, 0, out.data,
                  static_cast<const float*>(expert_out), routed_weights, static_cast<const float*>(shared),
                  static_cast<const float*>(shared_logit), tap.experts, tap.expert_out_norm, rows, top_k,
                  static_cast<int>(out.cols));
  bf16_inputs_of_ = {};
}

// Decode steps: for each row, gate and up of all chosen experts and of the shared one are one kernel, whose results carry the
// experts' weights; down is one kernel that sums over the experts as if their inputs were one long row, and waits like any other
// product for the residual add. Row by row, so that a token beside others has the bits of one alone. False where the shapes do
// not allow it.
bool CudaBackend::few_rows_experts(ops::Matrix x, const ops::MoeWeights& weights, const std::int32_t* ids, const float* top,
                                   const float* shared_logit, ops::Matrix out) {
  const CudaWeight &gate = resident(weights.gate), &up = resident(weights.up), &down = resident(weights.down);
  const auto alike = [](const CudaWeight& a, const CudaWeight& b) {
    return a.format == b.format && a.rows == b.rows && a.cols == b.cols;
  };
  const int chosen = weights.top_k, all = chosen + (weights.shared_gate ? 1 : 0);
  if (!options_.fuse || x.rows > kExpertGemvRows || !alike(gate, up) || x.cols * 4 > static_cast<std::int64_t>(kGemvSharedBytes) ||
      down.cols * all * 4 > static_cast<std::int64_t>(kGemvSharedBytes)) {
    return false;
  }
  if (weights.shared_gate && !(alike(gate, resident(weights.shared_gate)) && alike(up, resident(weights.shared_up)) &&
                               alike(down, resident(weights.shared_down)))) {
    return false;
  }
  const std::int64_t hidden_row = all * gate.rows;
  float* hidden = scratch_f32(kSlotGate, x.rows * hidden_row);
  const auto fill = [&](PendingGemv& gemv, const CudaWeight& first, const ops::Weight* shared, std::int64_t row) {
    GemvArgs& args = gemv.args;
    GemvSegment& segment = args.segments[args.segment_count];
    segment.data = static_cast<const unsigned char*>(first.data);
    segment.elements = first.elements;
    segment.rows = static_cast<int>(first.rows);
    if (shared) {
      args.shared_data[args.segment_count] = static_cast<const unsigned char*>(resident(shared).data);
      args.shared_elements = resident(shared).elements;
    }
    ++args.segment_count;
    gemv.format = first.format;
    gemv.group = first.group;
    args.expert_ids = ids + row * chosen;
    args.experts_chosen = chosen;
  };
  for (std::int64_t row = 0; row < x.rows; ++row) {
    PendingGemv hiddens;
    fill(hiddens, gate, weights.shared_gate, row);
    fill(hiddens, up, weights.shared_up, row);
    hiddens.args.x = x.data + row * x.cols;
    hiddens.args.k = static_cast<int>(gate.cols);
    hiddens.args.m = all;
    hiddens.args.rows_per_input = all;
    hiddens.args.paired = 1;
    hiddens.args.swiglu_out = hidden + row * hidden_row;
    hiddens.args.expert_weights = top + row * chosen;
    hiddens.args.shared_logit = shared_logit ? shared_logit + row : nullptr;
    launch_gemv(hiddens);
  }
  for (std::int64_t row = 0; row < x.rows; ++row) {
    PendingGemv& sum = pending_gemvs_.emplace_back();
    fill(sum, down, weights.shared_down, row);
    sum.args.segments[0].out = out.data + row * out.cols;
    sum.args.x = hidden + row * hidden_row;
    sum.args.k = static_cast<int>(down.cols) * all;
    sum.args.m = 1;
    sum.args.joined = static_cast<int>(down.cols);
  }
  return true;
}

void CudaBackend::experts_on_host(ops::Matrix x, const ops::MoeWeights& weights, const std::int32_t* ids, const float* top,
                                  float* out, const std::function<void()>& meanwhile) {
  const auto rows = static_cast<std::size_t>(x.rows), top_k = static_cast<std::size_t>(weights.top_k);
  const std::size_t x_bytes = rows * static_cast<std::size_t>(x.cols) * 4, choice_bytes = rows * top_k * 4;
  const std::size_t bytes = 2 * x_bytes + 2 * choice_bytes;
  if (host_io_.bytes < bytes) {
    device_->synchronize(Lane::compute);
    device_->free_host(host_io_);
    host_io_ = device_->alloc_host(std::max<std::size_t>(bytes, 64 << 10));
  }
  if (!host_io_ready_) host_io_ready_ = device_->create_event();
  auto* host = static_cast<std::byte*>(host_io_.data);
  auto* host_x = reinterpret_cast<float*>(host);
  auto* host_out = reinterpret_cast<float*>(host + x_bytes);
  auto* host_ids = reinterpret_cast<std::int32_t*>(host + 2 * x_bytes);
  auto* host_top = reinterpret_cast<float*>(host + 2 * x_bytes + choice_bytes);
  device_->copy_out(host_x, x.data, x_bytes, Lane::compute);
  device_->copy_out(host_ids, ids, choice_bytes, Lane::compute);
  device_->copy_out(host_top, top, choice_bytes, Lane::compute);
  device_->record(host_io_ready_, Lane::compute);
  meanwhile();
  // Everything before the event has passed, so the last layer's copy out of host_out has too.
  device_->wait_host(host_io_ready_);
  options_.expert_host->run({host_x, host_ids, host_top, host_out, static_cast<int>(rows), weights.top_k, on_host(weights.gate),
                             on_host(weights.up), on_host(weights.down)});
  device_->copy_in(out, host_out, x_bytes, Lane::compute);
}

CudaBackend::ExpertOrder CudaBackend::sort_pairs(const std::int32_t* ids, int pairs, int experts, int tile_rows) {
  const int chunks = (pairs + kSortChunk - 1) / kSortChunk;
  // At most one started tile per expert beyond the full ones.
  ExpertOrder sorted{nullptr, nullptr, nullptr, experts, pairs, tile_rows, std::min(pairs, pairs / tile_rows + experts)};
  HEIRLOOM_CHECK(sorted.most_tiles <= 65535 && chunks <= 65535);
  sorted.offsets = static_cast<int*>(scratch(kSlotOffsets, static_cast<std::size_t>(experts + 2) * 4));
  sorted.order = static_cast<int*>(scratch(kSlotOrder, static_cast<std::size_t>(pairs) * 4));
  sorted.tiles = static_cast<int*>(scratch(kSlotTiles, static_cast<std::size_t>(sorted.most_tiles) * 8));
  auto* counts = static_cast<int*>(scratch(kSlotCounts, static_cast<std::size_t>(chunks) * static_cast<std::size_t>(experts) * 4));
  const Dim grid{static_cast<unsigned>(chunks)};
  device_->launch("moe_count", grid, {256}, 0, counts, static_cast<const int*>(ids), pairs, experts);
  device_->launch("moe_place", grid, {256}, 0, sorted.offsets, sorted.order, sorted.tiles, static_cast<const int*>(counts),
                  static_cast<const int*>(ids), pairs, experts, chunks, tile_rows);
  return sorted;
}

// `slot` holds the rows of experts [begin, end) of a streamed tensor.
CudaBackend::ExpertView CudaBackend::expert_view(const ops::Weight* weight, const void* streamed, Slot slot, int begin, int end,
                                                 bool bf16) {
  const PanelExperts* panels = on_host(weight);
  if (!panels) {
    const CudaWeight& here = resident(weight);
    return {static_cast<const unsigned char*>(here.data), here.elements, here.format, 0};
  }
  const int count = end - begin, all_panels = count * static_cast<int>(panels->panels);
  const u64 elements = static_cast<u64>(count) * static_cast<u64>(weight->rows * weight->cols);
  void* rows = scratch(slot, elements * (bf16 ? 2 : 4));
  const auto* from = static_cast<const unsigned char*>(streamed) +
                     static_cast<u64>(begin) * static_cast<u64>(panels->panels) * panels->panel_bytes;
  const std::string kernel = fmt::format("panel_{}_{}", panels->layout, bf16 ? "bf16" : "f32");
  const Dim grid{static_cast<unsigned>((weight->cols + 511) / 512), row_grid(all_panels)};
  const auto n = static_cast<int>(weight->rows), k = static_cast<int>(weight->cols), per_expert = static_cast<int>(panels->panels);
  if (bf16) {
    device_->launch(kernel.c_str(), grid, {256}, 0, static_cast<unsigned short*>(rows), from, static_cast<u64>(panels->panel_bytes),
                    all_panels, per_expert, n, k);
  } else {
    device_->launch(kernel.c_str(), grid, {256}, 0, static_cast<float*>(rows), from, static_cast<u64>(panels->panel_bytes), all_panels,
                    per_expert, n, k);
  }
  return {static_cast<const unsigned char*>(rows), elements, bf16 ? "bf16" : "f32", begin};
}

void CudaBackend::grouped_experts(ops::Matrix x, const ops::MoeWeights& weights, const std::int32_t* ids, float* expert_out) {
  const int top_k = weights.top_k, pairs = static_cast<int>(x.rows) * top_k, experts = static_cast<int>(weights.gate->experts);
  const auto inner = static_cast<int>(weights.gate->rows), hidden_size = static_cast<int>(x.cols);
  const PanelExperts *gate = on_host(weights.gate), *up = on_host(weights.up), *down = on_host(weights.down);
  const bool streamed = gate != nullptr;
  const auto format_of = [&](const ops::Weight* weight) { return streamed ? "bf16" : resident(weight).format; };
  const auto has_mma = [&](const ops::Weight* weight) {
    return device_->tier_of(fmt::format("moe_mma_{}_64", format_of(weight))) >= 80;
  };
  const bool bf16 = gemm_ == GemmType::bf16 && has_mma(weights.gate) && has_mma(weights.down) &&
                    std::string_view(format_of(weights.gate)) == format_of(weights.up) && hidden_size % 32 == 0 && inner % 32 == 0;
  // Half-empty tiles cost as much as full ones; results do not depend on the choice.
  const int tile_rows = bf16 && pairs >= 96 * experts ? 128 : 64;
  const ExpertOrder sorted = sort_pairs(ids, pairs, experts, tile_rows);

  const std::size_t expert_bytes = static_cast<std::size_t>(inner) * static_cast<std::size_t>(hidden_size) * (bf16 ? 2 : 4);
  const int at_once = streamed ? std::clamp(static_cast<int>(kUnpackedBytes / (2 * expert_bytes)), 1, experts) : experts;
  const void* from[3] = {nullptr, nullptr, nullptr};
  if (streamed) {
    from[0] = stream_->use(*gate);
    from[1] = stream_->use(*up);
  }
  const auto each_group = [&](const auto& work) {
    for (int begin = 0; begin < experts; begin += at_once) work(begin, std::min(begin + at_once, experts));
  };
  if (bf16) {
    const unsigned short* inputs = bf16_inputs(x);
    auto* hidden = static_cast<unsigned short*>(scratch(kSlotGate, static_cast<std::size_t>(pairs) * static_cast<std::size_t>(inner) * 2));
    MoeMmaArgs args{};
    args.offsets = sorted.offsets;
    args.order = sorted.order;
    args.tiles = sorted.tiles;
    args.experts = experts;
    const auto product = [&](const ExpertView& view, int n, int k, bool paired) {
      args.weight = view.data;
      args.elements = view.elements;
      args.first_expert = view.first_expert;
      args.n = n;
      args.k = k;
      const std::string kernel = fmt::format("moe_mma_{}_{}{}", view.format, tile_rows, paired ? "_pair" : "");
      const int width = paired ? 64 : 128;
      device_->launch(kernel.c_str(), {static_cast<unsigned>((n + width - 1) / width), static_cast<unsigned>(sorted.most_tiles)}, {256}, 0,
                      args);
    };
    each_group([&](int begin, int end) {
      args.expert_begin = begin;
      args.expert_end = end;
      args.a = inputs;
      args.rows_per_input = top_k;
      args.hidden = hidden;
      const ExpertView g = expert_view(weights.gate, from[0], kSlotUnpacked0, begin, end, true);
      args.weight2 = expert_view(weights.up, from[1], kSlotUnpacked1, begin, end, true).data;
      product(g, inner, hidden_size, true);
    });
    if (streamed) {
      stream_->release(*up);
      from[2] = stream_->use(*down);
    }
    each_group([&](int begin, int end) {
      args.expert_begin = begin;
      args.expert_end = end;
      args.a = hidden;
      args.rows_per_input = 1;
      args.out = expert_out;
      product(expert_view(weights.down, from[2], kSlotUnpacked0, begin, end, true), hidden_size, inner, false);
    });
    if (streamed) stream_->release(*down);
    return;
  }

  float* hidden = scratch_f32(kSlotGate, static_cast<std::int64_t>(pairs) * inner);
  float* up_out = scratch_f32(kSlotUp, static_cast<std::int64_t>(pairs) * inner);
  const auto product = [&](const ExpertView& view, const ops::Weight* weight, const float* in, float* to, int rows_per_input, int begin,
                           int end) {
    const std::string kernel = fmt::format("moe_gemm_{}", view.format);
    device_->launch(kernel.c_str(), {static_cast<unsigned>((weight->rows + 63) / 64), static_cast<unsigned>(sorted.most_tiles)}, {256}, 0,
                    to, in, view.data, view.elements, static_cast<const int*>(sorted.offsets), static_cast<const int*>(sorted.order),
                    static_cast<const int*>(sorted.tiles), experts, static_cast<int>(weight->rows), static_cast<int>(weight->cols),
                    rows_per_input, begin, end, view.first_expert);
  };
  each_group([&](int begin, int end) {
    product(expert_view(weights.gate, from[0], kSlotUnpacked0, begin, end, false), weights.gate, x.data, hidden, top_k, begin, end);
    product(expert_view(weights.up, from[1], kSlotUnpacked1, begin, end, false), weights.up, x.data, up_out, top_k, begin, end);
  });
  if (streamed) {
    stream_->release(*up);
    from[2] = stream_->use(*down);
  }
  const ops::Matrix h{hidden, pairs, inner}, u{up_out, pairs, inner};
  swiglu(h, u, h);
  each_group([&](int begin, int end) {
    product(expert_view(weights.down, from[2], kSlotUnpacked0, begin, end, false), weights.down, hidden, expert_out, 1, begin, end);
  });
  if (streamed) stream_->release(*down);
}

}  // namespace heirloom::cuda
