// Matrix products: GEMVs of few rows (delayed, see cuda_backend.h), vendor GEMM over dequantised weights for many.
#include <algorithm>
#include <bit>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/launch_grids.h"
#include "base/check.h"

namespace heirloom::cuda {
namespace {

using u64 = unsigned long long;

constexpr std::int64_t kGemvMaxRows = 8;
constexpr std::size_t kGemvSharedBytes = 36 * 1024;  // of 48 KiB; the rest is for sums
constexpr unsigned kGemvBlocks = 2;  // on a multiprocessor: 1 and 4 were slower by 21 and 8 % on an H200
constexpr std::size_t kWeightScratchBytes = std::size_t{64} << 20;

bool is_quantised(std::string_view format) { return format != "f32" && format != "f16" && format != "bf16"; }

// Threads that share a row. Depends on the shape alone, so that results do not depend on the batch.
int lanes_for(std::int64_t groups, std::int64_t rows, std::int64_t teams, int tier) {
  if (tier >= 80) {
    // One warp, which needs no barrier, unless that leaves a large card's multiprocessors (132 of 16 warps here) without work.
    constexpr std::int64_t kWarps = 132 * 16;
    std::int64_t lanes = 32;
    while (lanes < 256 && 2 * lanes <= groups && teams * lanes / 32 * 2 <= kWarps) lanes *= 2;
    return static_cast<int>(lanes);
  }
  // Enough that each has a handful of groups: more threads hide the latency that bounds small matrices, fewer amortise the sums of
  // large ones.
  const std::int64_t per_lane = rows >= 32768 ? 2 : 1;
  const auto lanes = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(groups / per_lane, 1))));
  // Two rows a team and 65535 blocks at most: very tall matrices need more teams in a block.
  const std::int64_t most = rows > 4 * 65535 ? 64 : rows > 2 * 65535 ? 128 : 256;
  return static_cast<int>(std::clamp<std::int64_t>(lanes, 32, most));
}

}  // namespace

void CudaBackend::launch_gemv(PendingGemv& gemv) {
  if (gemv.experts) return launch_expert_sum(gemv);
  if (launch_token_rows(gemv)) return;
  GemvArgs& args = gemv.args;
  const bool one = args.expert_ids != nullptr || (args.m == 1 && static_cast<std::size_t>(args.k) * 4 <= kGemvSharedBytes);
  const std::string kernel = fmt::format("gemv_{}_{}", gemv.format, one ? 1 : 4);
  const int tier = device_->tier_of(kernel), rows_of_team = tier >= 80 ? 4 : 2;
  // From sm80 on rows of x meet quantised weights as int8 with their scales (warp_formats.h), 32 weights a group.
  const bool int8 = tier >= 80 && is_quantised(gemv.format);
  const int group = int8 ? 32 : gemv.group;
  const auto k = static_cast<std::size_t>(args.k);
  // Floats are swizzled inside each 32 of them (float_row.h).
  const std::size_t shared_bytes = int8 ? (one ? 1 : 4) * (k + k / 2) : one ? 4 * ((k + 31) / 32 * 32) : 0;
  std::int64_t rows = 0, teams = 0;
  for (int i = 0; i < args.segment_count; ++i) {
    args.segments[i].first_team = static_cast<int>(teams);
    rows += args.segments[i].rows;
    teams += (args.segments[i].rows + rows_of_team - 1) / rows_of_team;
  }
  if (args.paired) teams = (2 * args.segments[0].rows + rows_of_team - 1) / rows_of_team;
  // Of the experts' products several run at once, however many there are.
  args.lanes = lanes_for(args.k / group, rows, args.expert_ids && !args.joined ? 8 * teams : teams, tier);
  args.lanes_shift = std::countr_zero(static_cast<unsigned>(args.lanes));
  args.groups = args.k / group;
  args.steps = (args.groups + args.lanes - 1) / args.lanes;
  args.inverse_k = 1.0f / static_cast<float>(args.k);
  const std::int64_t teams_of_block = kGemvThreads / args.lanes;
  const unsigned grid_y = args.expert_ids ? static_cast<unsigned>(args.m) : one ? 1u : static_cast<unsigned>((args.m + 3) / 4);
  args.blocks = static_cast<int>((teams + teams_of_block - 1) / teams_of_block);
  // As many blocks as run at once.
  const auto multiprocessors = static_cast<unsigned>(device_->info().multiprocessors);
  const unsigned at_once = std::max(1u, kGemvBlocks * multiprocessors / std::max(1u, std::min(grid_y, 8u)));
  device_->launch(kernel.c_str(), {std::min(static_cast<unsigned>(args.blocks), at_once), grid_y}, {kGemvThreads}, shared_bytes, args);
}

void CudaBackend::linear(ops::Matrix x, std::span<const ops::LinearOut> outs) { linear_now(x, outs, false); }

// `exact` keeps f32 arithmetic whatever the backend's product type is (the router's choices hang on it).
void CudaBackend::linear_now(ops::Matrix x, std::span<const ops::LinearOut> outs, bool exact) {
  if (x.rows > kGemvMaxRows) {
    flush_keeping_inputs();
    const bool biased = std::ranges::all_of(outs, [](const ops::LinearOut& out) { return out.bias != nullptr; });
    if ((gemm_ == GemmType::f32 || biased) && options_.fuse && !exact && outs.size() > 1) {  // the delta rule's in FP32, a tower's q, k and v
      pending_products_ = PendingProducts{x, {outs.begin(), outs.end()}};
      return;
    }
    run_products(x, outs, exact);
    if (!options_.fuse) flush_products();
    return;
  }
  if (collect(x, outs)) return;
  linear_few_rows(x, outs);
}

void CudaBackend::linear_few_rows(ops::Matrix x, std::span<const ops::LinearOut> outs) {
  give_up_collecting();
  if (residual_ && (x.data == residual_->of || pending_norm_)) {
    for (PendingGemv& gemv : pending_gemvs_) launch_gemv(gemv);
    pending_gemvs_.clear();
    settle_residual();
  }
  std::optional<PendingNorm> norm;
  const bool fits = static_cast<std::size_t>(x.cols) * 4 <= kGemvSharedBytes;
  if (pending_norm_ && x.rows == 1 && fits && (pending_norm_->out == x.data || pending_norm_->out_copy == x.data)) {
    norm = pending_norm_;
    pending_norm_.reset();
  }
  // A residual add that waits in pending_gemvs_ feeds the norm: launch it first.
  for (PendingGemv& gemv : pending_gemvs_) launch_gemv(gemv);
  pending_gemvs_.clear();
  flush_norm();
  for (const ops::LinearOut& out : outs) {
    const auto& weight = static_cast<const CudaWeight&>(*out.weight);
    HEIRLOOM_CHECK(weight.cols == x.cols);
    PendingGemv* gemv = nullptr;
    for (PendingGemv& candidate : pending_gemvs_) {
      if (candidate.format == weight.format && candidate.args.segment_count < kGemvMaxSegments) gemv = &candidate;
    }
    if (gemv == nullptr) {
      gemv = &pending_gemvs_.emplace_back();
      gemv->format = weight.format;
      gemv->group = weight.group;
      gemv->args.x = x.data;
      gemv->args.k = static_cast<int>(x.cols);
      gemv->args.m = static_cast<int>(x.rows);
      if (norm) {
        gemv->args.x = norm->x.data;
        gemv->args.norm_weight = norm->weight;
        gemv->args.eps = norm->eps;
        gemv->args.normed = norm->out;
        gemv->args.normed_copy = norm->out_copy;
      }
    }
    GemvSegment& segment = gemv->args.segments[gemv->args.segment_count++];
    segment.data = static_cast<const unsigned char*>(weight.data);
    segment.elements = weight.elements;
    segment.out = out.out;
    segment.bias = out.bias;
    segment.rows = static_cast<int>(weight.rows);
  }
  if (!options_.fuse) flush();
}

void CudaBackend::gemm(const GemmCall& call) {
  if (device_->vendor_gemm(call)) return;
  HEIRLOOM_CHECK(!call.bf16);
  if (call.batch > 1) {
    GemmCall one = call;
    one.batch = 1;
    for (int i = 0; i < call.batch; ++i) {
      one.a = static_cast<const float*>(call.a) + i * call.stride_a;
      one.b = static_cast<const float*>(call.b) + i * call.stride_b;
      one.c = call.c + i * call.stride_c;
      gemm(one);
    }
    return;
  }
  const int rows_at_once = 65535 * 64;
  HEIRLOOM_CHECK(call.m <= rows_at_once && call.n <= rows_at_once);
  const Dim grid{static_cast<unsigned>((call.n + 63) / 64), static_cast<unsigned>((call.m + 63) / 64)};
  device_->launch(call.b_transposed ? "sgemm_nt" : "sgemm_nn", grid, {256}, 0, call.c, static_cast<const float*>(call.a),
                  static_cast<const float*>(call.b), call.m, call.n, call.k, call.lda, call.ldb, call.ldc, call.alpha,
                  call.beta != 0.0f ? 1 : 0);
}

void CudaBackend::to_bf16(unsigned short* out, const float* x, std::uint64_t count) {
  HEIRLOOM_CHECK(count % 4 == 0);
  device_->launch("f32_to_bf16_rows", {map_grid(count / 4)}, {256}, 0, out, x, static_cast<u64>(count / 4));
}

// The input of products as bf16: left by the kernel that made it, or converted here, once for all products with it.
const unsigned short* CudaBackend::bf16_inputs(ops::Matrix x) {
  const auto n = static_cast<std::uint64_t>(x.rows * x.cols);
  auto* inputs = static_cast<unsigned short*>(scratch(kSlotInputs, n * 2));
  if (bf16_inputs_of_.data != x.data || bf16_inputs_of_.cols != x.cols || bf16_inputs_of_.rows < x.rows) {
    to_bf16(inputs, x.data, n);
    bf16_inputs_of_ = x;
  }
  return inputs;
}

// Where a kernel that writes `out` for BF16 products may leave the same values as bf16; null where nobody will want them.
unsigned short* CudaBackend::bf16_twin(ops::Matrix out) {
  if (gemm_ != GemmType::bf16 || out.rows <= kGemvMaxRows || out.cols % 4 != 0) return nullptr;
  bf16_inputs_of_ = out;
  return static_cast<unsigned short*>(scratch(kSlotInputs, static_cast<std::size_t>(out.rows * out.cols) * 2));
}

void CudaBackend::unpack_rows(const CudaWeight& weight, std::int64_t first, std::int64_t rows, void* to, bool bf16) {
  const std::string kernel = fmt::format("rows_{}_{}", weight.format, bf16 ? "bf16" : "f32");
  const Dim grid{weight.unpacking_blocks(), row_grid(rows)};
  const auto* data = static_cast<const unsigned char*>(weight.data);
  const int* no_ids = nullptr;
  const auto launch = [&](auto* out) {
    device_->launch(kernel.c_str(), grid, {128}, 0, out, data, static_cast<u64>(weight.elements), no_ids, static_cast<int>(first),
                    static_cast<int>(rows), static_cast<int>(weight.cols));
  };
  if (bf16) launch(static_cast<unsigned short*>(to));
  else launch(static_cast<float*>(to));
}

// The rows of the weights, one after another, as products read them: as they lie, from a kept copy, or unpacked for this use where they fit the
// buffer for it. Else null.
const void* CudaBackend::unpacked(std::span<const CudaWeight* const> weights, bool bf16) {
  if (weights.size() == 1 && weights[0]->type == (bf16 ? DType::bf16 : DType::f32)) return weights[0]->data;
  const std::size_t element = bf16 ? 2 : 4;
  WeightCopies::Copy copy;
  if (bf16 == (gemm_ == GemmType::bf16)) copy = copies_->of(weights);
  if (copy.rows != nullptr && !copy.fresh) return copy.rows;
  std::size_t bytes = 0;
  for (const CudaWeight* weight : weights) bytes += static_cast<std::size_t>(weight->rows * weight->cols) * element;
  if (copy.rows == nullptr) {
    if (bytes > kWeightScratchBytes) return nullptr;
    copy.rows = scratch(kSlotWeights, kWeightScratchBytes);
  }
  auto* to = static_cast<std::byte*>(copy.rows);
  for (const CudaWeight* weight : weights) {
    unpack_rows(*weight, 0, weight->rows, to, bf16);
    to += static_cast<std::size_t>(weight->rows * weight->cols) * element;
  }
  return copy.rows;
}

void CudaBackend::run_products(ops::Matrix x, std::span<const ops::LinearOut> outs, bool exact) {
  while (!outs.empty()) {
    const std::size_t together = exact ? 1 : batch_of(x, outs);
    gemm_linear(x, outs.first(together), exact);
    outs = outs.subspan(together);
  }
}

// The products that wait for `outs` as one, side by side in rows of all their columns and without biases; `outs` are not written. Null, and they still wait, where others
// wait or the weights do not fit the buffer for unpacking. On an H200 947 rows of 6,144, 2,048, 16 and 16 columns took 442 us apart and 356 us so.
float* CudaBackend::joined_products(std::span<const float* const> outs) {
  if (!pending_products_ || pending_products_->outs.size() != outs.size()) return nullptr;
  const ops::Matrix x = pending_products_->x;
  std::vector<const CudaWeight*> weights;
  std::int64_t columns = 0;
  for (std::size_t i = 0; i < outs.size(); ++i) {
    if (pending_products_->outs[i].out != outs[i]) return nullptr;
    weights.push_back(static_cast<const CudaWeight*>(pending_products_->outs[i].weight));
    columns += weights.back()->rows;
  }
  const bool bf16 = gemm_ == GemmType::bf16;
  if (static_cast<std::size_t>(columns * x.cols) * (bf16 ? 2 : 4) > kWeightScratchBytes) return nullptr;  // kept rows or not: the same form
  pending_products_.reset();
  float* joined = scratch_f32(kSlotJoined, x.rows * columns);
  GemmCall call;
  call.bf16 = bf16;
  call.m = static_cast<int>(x.rows);
  call.n = call.ldc = static_cast<int>(columns);
  call.k = call.lda = call.ldb = static_cast<int>(x.cols);
  call.a = bf16 ? static_cast<const void*>(bf16_inputs(x)) : x.data;
  call.b = unpacked(weights, bf16);
  call.c = joined;
  gemm_in_waves(call);
  return joined;
}

// How many of `outs`, from the first on, are one batched product: FP32 ones of one shape whose results follow each other in memory. Narrow ones
// alone leave most of a large card's multiprocessors without work.
std::size_t CudaBackend::batch_of(ops::Matrix x, std::span<const ops::LinearOut> outs) const {
  const auto& first = static_cast<const CudaWeight&>(*outs[0].weight);
  const std::int64_t distance = x.rows * first.rows;
  const auto most = static_cast<std::size_t>(std::max<std::int64_t>(1, static_cast<std::int64_t>(kWeightScratchBytes / 4) / (first.rows * first.cols)));
  std::size_t count = 1;
  if (gemm_ != GemmType::f32 || !options_.fuse) return count;
  while (count < outs.size() && count < most && outs[count].weight->rows == first.rows && outs[count].out == outs[count - 1].out + distance) ++count;
  return count;
}

// The columns of an FP32 product that the vendor's tiles of 128x128, two a multiprocessor, fill in whole waves, where those left over are at most half a wave:
// as a product of their own they take smaller tiles. On an H200 (us, whole and cut): 1024x4304x1152 289 and 227, 256x17216x4608 955 and 822, 1260x3456x1152
// 286 and 221, 4096x3584x1024 735 and 629. Long sums the library cuts into parts that fill waves by themselves (5040x1152x4304 1016 and 1057): there at most
// a quarter of a wave is cut off. A wave of more than 98.5 % now and then took the time of two.
std::int64_t CudaBackend::whole_waves(const GemmCall& call) const {
  constexpr std::int64_t kTile = 128;
  constexpr int kLongSum = 2048;
  const std::int64_t rows = call.m, columns = call.n;
  const std::int64_t tiles_of_row = (rows + kTile - 1) / kTile, wave = 2 * device_->info().multiprocessors;
  const std::int64_t tiles = tiles_of_row * ((columns + kTile - 1) / kTile), waves = tiles / wave;
  const std::int64_t whole = waves * wave * 985 / 1000 / tiles_of_row;
  const std::int64_t most_left = wave / (call.k > kLongSum ? 4 : 2);
  return whole > 0 && tiles - whole * tiles_of_row <= most_left ? std::min(whole * kTile, columns) : columns;
}

void CudaBackend::gemm_in_waves(GemmCall call) {
  const int whole = call.batch > 1 || call.bf16 ? call.n : static_cast<int>(whole_waves(call));
  const int left = call.n - whole;
  call.n = whole;
  gemm(call);
  if (left == 0) return;
  call.b = static_cast<const float*>(call.b) + static_cast<std::int64_t>(whole) * call.ldb;
  call.c += whole;
  call.n = left;
  gemm(call);
}

// Products of one shape: several are a batch (batch_of).
void CudaBackend::gemm_linear(ops::Matrix x, std::span<const ops::LinearOut> outs, bool exact) {
  std::vector<const CudaWeight*> weights;
  for (const ops::LinearOut& out : outs) {
    weights.push_back(static_cast<const CudaWeight*>(out.weight));
    HEIRLOOM_CHECK(weights.back()->cols == x.cols);
  }
  const CudaWeight& weight = *weights[0];
  const bool bf16 = gemm_ == GemmType::bf16 && !exact;
  GemmCall call;
  call.a = x.data;
  if (bf16) call.a = bf16_inputs(x);
  call.m = static_cast<int>(x.rows);
  call.k = static_cast<int>(x.cols);
  call.lda = call.ldb = call.k;
  call.ldc = static_cast<int>(weight.rows);
  call.bf16 = bf16;
  call.batch = static_cast<int>(outs.size());
  call.stride_b = static_cast<long long>(weight.rows * weight.cols);
  call.stride_c = static_cast<long long>(x.rows * weight.rows);
  const auto rows_at_once =
      static_cast<std::int64_t>(std::max<std::size_t>(1, kWeightScratchBytes / (static_cast<std::size_t>(weight.cols) * (bf16 ? 2 : 4))));
  const void* all_rows = unpacked(weights, bf16);
  for (std::int64_t first = 0; first < weight.rows; first += all_rows ? weight.rows : rows_at_once) {
    const std::int64_t rows = all_rows ? weight.rows : std::min(rows_at_once, weight.rows - first);
    call.b = all_rows;
    if (all_rows == nullptr) {
      void* some = scratch(kSlotWeights, kWeightScratchBytes);
      unpack_rows(weight, first, rows, some, bf16);
      call.b = some;
    }
    call.c = outs[0].out + first;
    call.n = static_cast<int>(rows);
    gemm_in_waves(call);
  }
  for (const ops::LinearOut& out : outs) {
    if (out.bias) pending_biases_.push_back({{out.out, x.rows, weight.rows}, out.bias});
    if (out.out == bf16_inputs_of_.data) bf16_inputs_of_ = {};
  }
}

void CudaBackend::expert_gemv(const CudaWeight& first, const CudaWeight* second, const float* x, int rows_per_input,
                              const int* ids, int pairs, float* out, float* swiglu_out) {
  PendingGemv gemv;
  gemv.format = first.format;
  gemv.group = first.group;
  GemvArgs& args = gemv.args;
  for (const CudaWeight* weight : {&first, second}) {
    if (!weight) continue;
    GemvSegment& segment = args.segments[args.segment_count++];
    segment.data = static_cast<const unsigned char*>(weight->data);
    segment.elements = weight->elements;
    segment.out = second ? nullptr : out;
    segment.rows = static_cast<int>(weight->rows);
  }
  args.x = x;
  args.k = static_cast<int>(first.cols);
  args.m = pairs;
  args.paired = second ? 1 : 0;
  args.swiglu_out = swiglu_out;
  args.expert_ids = ids;
  args.rows_per_input = rows_per_input;
  launch_gemv(gemv);
}

}  // namespace heirloom::cuda
