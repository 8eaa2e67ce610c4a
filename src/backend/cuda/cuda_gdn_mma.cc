// The chunked delta rule on tensor cores: inside chunks, the walk over them, outputs with the gated norm.
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/kernels/gdn_mma_args.h"

namespace heirloom::cuda {
namespace {

constexpr int kDim = 128;
// Dynamic shared memory: the kernels' first lines lay it out.
constexpr std::size_t kIntraShared = 2 * 64 * 132 * 4;
constexpr std::size_t kWalkShared = (64 * 132 + 64 * 136 + (3 * 64 + 128) * 24 + 2 * 64) * 4;
constexpr std::size_t kOutputShared = (128 * 136 + 128 * 72 + 64 * 72 + 64 * 136) * 2;

}  // namespace

void CudaBackend::gdn_chunks_on_tensor_cores(int layer, const ops::GdnWeights& weights, const GdnChunkArgs& inputs, ops::Matrix z,
                                             ops::Matrix out, float* core, int chunks) {
  const auto sequences = static_cast<unsigned>(plan_->sequences.size());
  const std::int64_t slots = out.rows / kGdnChunk + 2 * static_cast<std::int64_t>(sequences) + 1, tiles = slots * weights.num_v_heads;
  const auto halves = [&](Slot slot, std::int64_t count) {
    return static_cast<unsigned short*>(scratch(slot, static_cast<std::size_t>(count) * 2));
  };
  GdnMmaArgs args{};
  args.q = inputs.q;
  args.k = inputs.k;
  args.conv_out = inputs.conv_out;
  args.g = inputs.g;
  args.beta = inputs.beta;
  args.z = z.data;
  args.norm = weights.norm;
  args.cumulative = scratch_f32(kSlotGdnCumulative, tiles * kGdnChunk);
  args.u = scratch_f32(kSlotGdnU, tiles * kGdnChunk * kDim);
  args.w = static_cast<unsigned*>(scratch(kSlotGdnW, static_cast<std::size_t>(tiles * kGdnChunk * kDim) * 4));
  args.attention = halves(kSlotGdnAttention, tiles * kGdnChunk * kGdnChunk);
  args.values = halves(kSlotGdnValues, tiles * kGdnChunk * kDim);
  args.states = halves(kSlotGdnStates, tiles * kDim * kDim);
  args.core_out = core;
  args.out = out.data;
  args.twin = sequences == 1 ? bf16_twin(out) : nullptr;
  args.sequences = device_sequences();
  args.layer = layer;
  args.num_k_heads = weights.num_k_heads;
  args.num_v_heads = weights.num_v_heads;
  args.tiled = weights.v_heads_tiled ? 1 : 0;
  args.recurrent_rows = options_.gdn_recurrent_rows;
  args.eps = weights.eps;
  const auto heads = static_cast<unsigned>(weights.num_v_heads);
  const Dim all_chunks{static_cast<unsigned>(chunks), heads, sequences};
  device_->launch("gdn_mma_intra_128", all_chunks, {256}, kIntraShared, args);
  device_->launch("gdn_mma_walk_128", {kDim / 16, heads, sequences}, {256}, kWalkShared, args);
  device_->launch("gdn_mma_output_128", all_chunks, {256}, kOutputShared, args);
}

}  // namespace heirloom::cuda
