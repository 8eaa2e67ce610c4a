// Memory, steps and the ops that are one kernel each. Products are in cuda_linear.cc, the mixers in cuda_gdn.cc and
// cuda_attention.cc, attention of pictures in cuda_segments.cc, experts in cuda_moe.cc.
#include "backend/cuda/cuda_backend.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "backend/cuda/kernels/layer_norm_args.h"
#include "backend/cuda/launch_grids.h"
#include "base/check.h"
#include "base/log.h"

namespace heirloom::cuda {
namespace {

using u64 = unsigned long long;

std::uint64_t count(const ops::Matrix& x) { return static_cast<std::uint64_t>(x.rows * x.cols); }

}  // namespace

CudaBackend::CudaBackend(std::unique_ptr<Device> device, const CudaBackendOptions& options)
    : device_(std::move(device)), options_(options) {
  const bool fermi = device_->options().fermi;
  if (fermi && options.gemm == GemmType::bf16) fail(ErrorKind::usage, "--profile fermi has FP32 products only");
  gemm_ = options.gemm.value_or(!fermi && device_->info().tier >= 80 && device_->has_vendor_gemm(true) ? GemmType::bf16
                                                                                                      : GemmType::f32);
  if (gemm_ == GemmType::bf16 && !device_->has_vendor_gemm(true)) {
    fail(ErrorKind::device, "BF16 products need a card of compute capability 8.0 or newer and cuBLAS 8.0 or newer");
  }
  copies_ = std::make_shared<WeightCopies>(*device_, options_.weight_copies, gemm_ == GemmType::bf16 ? 2 : 4);
  if (options_.expert_host) stream_ = std::make_unique<ExpertStream>(*device_);
}

CudaBackend::~CudaBackend() {
  drop_graphs();
  stream_.reset();
  try {
    device_->synchronize(Lane::compute);  // copies from the memory that goes now
  } catch (const Error&) {
    // The device is lost.
  }
  for (const Event event : upload_read_) device_->destroy_event(event);
  device_->free_host(upload_chunks_);
  device_->destroy_event(host_io_ready_);
  device_->free_host(host_io_);
  device_->free_host(host_small_);
  for (Scratch& slot : scratch_) device_->free(slot.data);
}

void CudaBackend::drop_graphs() noexcept {
  for (auto& [key, recorded] : recorded_) device_->destroy_graph(recorded.graph);
  recorded_.clear();
  recording_ = nullptr;
}

void* CudaBackend::scratch(Slot slot, std::size_t bytes) {
  Scratch& found = scratch_[slot];
  if (found.bytes >= bytes) return found.data;
  // A recorded graph keeps the addresses it was recorded with, and earlier launches may still use the old memory.
  HEIRLOOM_CHECK(recording_ == nullptr);
  drop_graphs();
  device_->synchronize(Lane::compute);
  device_->free(found.data);
  found = {};
  const std::size_t wanted = std::max(bytes, std::size_t{4096});
  found.data = allocate(wanted, "scratch");
  found.bytes = wanted;
  return found.data;
}

void* CudaBackend::allocate(std::size_t bytes, std::string_view what) {
  if (void* data = device_->try_alloc(bytes)) return data;
  copies_->drop();
  return device_->alloc(bytes, what);
}
void* CudaBackend::alloc(std::size_t bytes) { return allocate(bytes, "a buffer"); }
void CudaBackend::free(void* data, std::size_t) noexcept {
  try {
    flush_products();  // they may lie in this memory
  } catch (const Error&) {
    // The device is lost, which the next call will say.
  }
  device_->free(data);
}

void CudaBackend::upload(void* device, const void* host, std::size_t bytes) {
  HEIRLOOM_CHECK(recording_ == nullptr);
  flush();
  if (bytes < kUploadChunk / 2 || !upload_by_chunks()) {
    device_->copy_in(device, host, bytes, Lane::compute);
    return;
  }
  for (std::size_t at = 0; at < bytes; at += kUploadChunk) {
    const std::size_t part = std::min(kUploadChunk, bytes - at);
    std::byte* chunk = static_cast<std::byte*>(upload_chunks_.data) + upload_turn_ * kUploadChunk;
    device_->wait_host(upload_read_[upload_turn_]);
    std::memcpy(chunk, static_cast<const std::byte*>(host) + at, part);
    device_->copy_in(static_cast<std::byte*>(device) + at, chunk, part, Lane::compute);
    device_->record(upload_read_[upload_turn_], Lane::compute);
    upload_turn_ = (upload_turn_ + 1) % kUploadChunks;
  }
}
// Large uploads (a picture's pixels, states from the cache) pass through page-locked chunks that are filled while the one before is on
// its way: the driver takes other memory at 5.6 GB/s on the H200's host, and waits for it. False where nothing can be locked.
bool CudaBackend::upload_by_chunks() {
  if (!upload_chunks_.data) {
    upload_chunks_ = device_->alloc_host(kUploadChunks * kUploadChunk);
    for (Event& event : upload_read_) {
      event = device_->create_event();
      device_->record(event, Lane::compute);
    }
  }
  return upload_chunks_.pinned;
}
void CudaBackend::download(void* host, const void* device, std::size_t bytes) {
  HEIRLOOM_CHECK(recording_ == nullptr);
  flush();
  // A token's id comes through page-locked memory: the driver takes a second copy and a wait of its own for other memory.
  constexpr std::size_t kSmallBytes = 4096;
  void* to = host;
  if (bytes <= kSmallBytes) {
    if (!host_small_.data) host_small_ = device_->alloc_host(kSmallBytes);
    to = host_small_.data;
  }
  device_->copy_out(to, device, bytes, Lane::compute);
  device_->synchronize(Lane::compute);
  if (to != host) std::memcpy(host, to, bytes);
}
void CudaBackend::copy(void* to, const void* from, std::size_t bytes) {
  flush();
  device_->copy(to, from, bytes, Lane::compute);
}
void CudaBackend::zero(void* device, std::size_t bytes) {
  flush();
  device_->fill(device, 0, bytes, Lane::compute);
}
void CudaBackend::synchronize() {
  flush();
  device_->synchronize(Lane::compute);
}

std::string CudaBackend::description() const {
  const DeviceInfo& info = device_->info();
  std::string text = fmt::format("cuda:{} {}, sm{} kernels, {} products{}", device_->options().index, info.name, info.tier,
                                 gemm_ == GemmType::bf16 ? "BF16" : "FP32", device_->options().fermi ? ", Fermi profile" : "");
  if (options_.expert_host) text += ", experts streamed for prompts and on " + options_.expert_host->description() + " for tokens";
  return text;
}

// A layer's gate, up and down are loaded one after another, and stay together.
bool CudaBackend::keeps_resident(const ops::WeightData& experts) {
  constexpr int kTensors = 3;
  const DType type = has_kernels(experts.type, experts.cols) ? experts.type : converted_type(experts.type, experts.cols);
  const std::uint64_t bytes = row_bytes(type, static_cast<std::uint64_t>(experts.cols)) * static_cast<std::uint64_t>(experts.experts * experts.rows);
  if (layer_experts_left_ == 0 &&
      resident_expert_bytes_ + (kTensors + ExpertStream::kMaxSlots) * bytes > options_.expert_bytes) {
    return false;
  }
  layer_experts_left_ = (layer_experts_left_ == 0 ? kTensors : layer_experts_left_) - 1;
  resident_expert_bytes_ += bytes;
  return true;
}

std::unique_ptr<ops::Weight> CudaBackend::load_weight(const ops::WeightData& data) {
  flush();
  drop_graphs();  // what was recorded may be another model's, whose weights are gone
  if (options_.expert_host && data.experts > 1 && !keeps_resident(data)) {
    std::unique_ptr<PanelExperts> experts = options_.expert_host->load(data);
    stream_->add(*experts);
    return experts;
  }
  if (!has_kernels(data.type, data.cols)) {
    log::info("{}: {} has no GPU kernel, kept as {}", data.name, dtype_name(data.type),
              dtype_name(converted_type(data.type, data.cols)));
  }
  constexpr std::size_t kStagingBytes = std::size_t{16} << 20;
  std::unique_ptr<CudaWeight> weight = upload_weight(*device_, data, scratch(kSlotWeights, kStagingBytes), kStagingBytes);
  weight->copies = copies_;
  return weight;
}

// ---- steps ----

bool CudaBackend::begin_step(const ops::StepPlan& plan, std::uint64_t key) {
  plan_ = &plan;
  splits_ = context_pages();

  // Layout of the table: sequences, row -> sequence, page pointers. Offsets are rounded up so that they rarely move.
  const std::size_t sequences = std::bit_ceil(plan.sequences.size());
  const std::size_t rows = std::bit_ceil(static_cast<std::size_t>(std::max(plan.num_rows, 1)));
  const std::size_t pages = static_cast<std::size_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(splits_, 4))));
  row_sequence_offset_ = sequences * sizeof(StepSequence);
  const std::size_t pages_offset = row_sequence_offset_ + ((rows * sizeof(int) + 15) & ~std::size_t{15});
  const std::size_t captures_offset = pages_offset + sequences * pages * sizeof(void*);
  std::size_t captures = 0;
  for (const ops::SequenceStep& step : plan.sequences) captures += step.captures.size();
  const std::size_t bytes = captures_offset + std::bit_ceil(captures + 1) * sizeof(StepCapture);
  step_device_ = static_cast<std::byte*>(scratch(kSlotStep, bytes));
  step_host_.assign(bytes, std::byte{0});
  auto* table = reinterpret_cast<StepSequence*>(step_host_.data());
  auto* row_sequence = reinterpret_cast<int*>(step_host_.data() + row_sequence_offset_);
  auto* capture_table = reinterpret_cast<StepCapture*>(step_host_.data() + captures_offset);
  std::size_t next_capture = 0;
  for (std::size_t i = 0; i < plan.sequences.size(); ++i) {
    const ops::SequenceStep& step = plan.sequences[i];
    const std::size_t at = pages_offset + i * pages * sizeof(void*);
    const auto used = static_cast<std::size_t>((step.past_tokens + step.num_rows + 63) / 64);
    HEIRLOOM_CHECK(step.pages.size() >= used || plan.shape.num_attention_layers == 0);
    table[i] = {step.first_row, step.num_rows, step.past_tokens, static_cast<int>(step.captures.size()), step.conv, step.recurrent,
                reinterpret_cast<const StepCapture*>(step_device_ + captures_offset) + next_capture,
                reinterpret_cast<unsigned char* const*>(step_device_ + at)};
    for (const ops::StateCapture& capture : step.captures) {
      capture_table[next_capture++] = {capture.rows, 0, capture.conv, capture.recurrent};
    }
    if (!step.pages.empty()) std::memcpy(step_host_.data() + at, step.pages.data(), std::min(used, step.pages.size()) * sizeof(void*));
    for (int r = 0; r < step.num_rows; ++r) row_sequence[step.first_row + r] = static_cast<int>(i);
  }
  device_->copy_in(step_device_, step_host_.data(), bytes, Lane::compute);

  collecting_ = key != 0 && plan.num_rows == 1 && device_->info().clusters && options_.fuse && options_.layer_kernels && options_.gdn_recurrent_rows >= 1;
  residual_.reset();
  turn_ = 0;  // every step takes the same buffers

  // Experts on the host are work between two launches, which no graph holds.
  if (key == 0 || !device_->info().graphs || device_->options().time_kernels || stream_) return false;
  splits_ = static_cast<std::int64_t>(pages);
  Recorded& recorded = recorded_[{key, splits_}];
  if (recorded.graph != nullptr) {
    device_->run_graph(recorded.graph);
    return true;
  }
  // The first time runs as it is, so that modules are loaded and scratch is allocated outside the recording.
  if (++recorded.seen >= 2) {
    device_->begin_capture();
    recording_ = &recorded;
  }
  return false;
}

void CudaBackend::end_step() {
  flush();
  collecting_ = false;
  plan_ = nullptr;
  if (recording_ == nullptr) return;
  Recorded* recorded = recording_;
  recording_ = nullptr;
  recorded->graph = device_->end_capture();
  device_->run_graph(recorded->graph);
}

void CudaBackend::abandon_step() noexcept {
  if (recording_ != nullptr) device_->abandon_capture();
  recording_ = nullptr;
  pending_norm_.reset();
  pending_gemvs_.clear();
  pending_biases_.clear();
  pending_add_.reset();
  pending_products_.reset();
  collecting_ = false;
  projections_.reset();
  half_.reset();
  residual_.reset();
  plan_ = nullptr;
}

std::int64_t CudaBackend::context_pages() const {
  std::int64_t most = 1;
  for (const ops::SequenceStep& step : plan_->sequences) {
    most = std::max<std::int64_t>(most, (step.past_tokens + step.num_rows + 63) / 64);
  }
  return most;
}

bool CudaBackend::one_row_each() const {
  return plan_ != nullptr && std::ranges::all_of(plan_->sequences, [](const ops::SequenceStep& s) { return s.num_rows == 1; });
}

int CudaBackend::kv_type() const {
  switch (plan_->shape.kv_type) {
    case DType::f32: return 0;
    case DType::f16: return 1;
    case DType::bf16: return 2;
    default: fail(ErrorKind::internal, "KV cache type {}", dtype_name(plan_->shape.kv_type));
  }
}

// ---- delayed work ----

void CudaBackend::flush_norm() {
  if (!pending_norm_) return;
  const PendingNorm norm = *pending_norm_;
  pending_norm_.reset();
  for (float* out : {norm.out, norm.out_copy}) {
    if (!out) continue;
    device_->launch("rms_norm", {row_grid(norm.x.rows)}, {256}, 0, out, bf16_twin({out, norm.x.rows, norm.x.cols}),
                    static_cast<const float*>(norm.x.data), norm.weight, static_cast<int>(norm.x.rows), static_cast<int>(norm.x.cols),
                    norm.eps);
  }
}

void CudaBackend::flush() {
  flush_keeping_residual();
  settle_residual();
}

void CudaBackend::flush_keeping_residual() {
  flush_products();  // with the inputs that wait for them as bf16
  bf16_inputs_of_ = {};
  give_up_collecting();
  for (PendingGemv& gemv : pending_gemvs_) launch_gemv(gemv);
  pending_gemvs_.clear();
  if (pending_norm_) settle_residual();
  flush_norm();
}

// Products of many rows that waited, their biases, and a residual add that waited for the norm behind it.
void CudaBackend::flush_products() {
  if (pending_products_) {
    const PendingProducts products = std::move(*pending_products_);
    pending_products_.reset();
    run_products(products.x, products.outs, false);
  }
  if (pending_add_) {
    const PendingAdd add = *pending_add_;
    pending_add_.reset();
    device_->launch("add_biased", {row_grid(add.x.rows)}, {256}, 0, add.x.data, static_cast<const float*>(add.y.data), add.bias,
                    static_cast<int>(add.x.rows), static_cast<int>(add.x.cols));
  }
  for (std::size_t first = 0; first < pending_biases_.size();) {
    // Those of one shape (q, k and v) share a launch.
    BiasArgs args{};
    const ops::Matrix& shape = pending_biases_[first].of;
    unsigned count = 0;
    for (; count < kBiasesMost && first < pending_biases_.size(); ++first, ++count) {
      const PendingBias& next = pending_biases_[first];
      if (next.of.rows != shape.rows || next.of.cols != shape.cols) break;
      args.x[count] = next.of.data;
      args.bias[count] = next.bias;
    }
    device_->launch("add_biases", {row_grid(shape.rows), count}, {256}, 0, args, static_cast<int>(shape.rows), static_cast<int>(shape.cols));
  }
  pending_biases_.clear();
}

// The bias that waits for `x` and nothing else, which the caller then adds; null if there is none.
const float* CudaBackend::take_bias(ops::Matrix x) {
  if (pending_biases_.size() != 1 || pending_biases_[0].of.data != x.data || pending_biases_[0].of.rows != x.rows || pending_biases_[0].of.cols != x.cols) {
    return nullptr;
  }
  const float* bias = pending_biases_[0].bias;
  pending_biases_.clear();
  return bias;
}

void CudaBackend::flush_keeping_inputs() {
  flush_products();  // they may put inputs of theirs there
  const ops::Matrix inputs = bf16_inputs_of_;
  flush_keeping_residual();
  bf16_inputs_of_ = inputs;
}

CudaBackend::PendingGemv* CudaBackend::pending_with_out(const float* out) {
  for (PendingGemv& gemv : pending_gemvs_) {
    if (gemv.args.segments[0].out == out) return &gemv;
  }
  return nullptr;
}

void CudaBackend::run_map(const char* kernel, float* x, std::uint64_t n) {
  device_->launch(kernel, {map_grid(n)}, {256}, 0, x, static_cast<u64>(n));
}

// ---- ops of one kernel ----

void CudaBackend::rms_norm(ops::Matrix x, const float* weight, float eps, ops::Matrix out) {
  flush();
  pending_norm_ = PendingNorm{x, weight, eps, out.data, nullptr};
  if (x.rows != 1 || x.data == out.data || !options_.fuse) flush_norm();
}

void CudaBackend::add_rms_norm(ops::Matrix residual, ops::Matrix delta, const float* weight, float eps, ops::Matrix out) {
  if (launch_half(residual, delta.data)) {
    pending_norm_ = PendingNorm{residual, weight, eps, out.data, nullptr};
    return;
  }
  PendingGemv* gemv = pending_with_out(delta.data);
  if (gemv != nullptr && gemv->args.segments[0].rows == residual.cols && gemv->args.m == residual.rows) {
    gemv->args.residual = residual.data;
    if (residual_ && residual_->of == residual.data && residual_->parts == 0) {
      gemv->args.residual_from = residual_->base;
      residual_.reset();
    }
    rms_norm(residual, weight, eps, out);
    return;
  }
  flush();
  device_->launch("add_rms_norm", {row_grid(residual.rows)}, {256}, 0, out.data, bf16_twin(out), residual.data,
                  static_cast<const float*>(delta.data), weight, static_cast<int>(residual.rows),
                  static_cast<int>(residual.cols), eps);
}

void CudaBackend::add(ops::Matrix x, ops::Matrix y) {
  settle_residual();
  PendingGemv* gemv = pending_with_out(y.data);
  if (gemv != nullptr && gemv->args.segments[0].rows == x.cols && gemv->args.m == x.rows) {
    gemv->args.residual = x.data;
    flush();
    return;
  }
  const float* bias = take_bias(y);
  flush();
  if (bias != nullptr) {
    pending_add_ = PendingAdd{x, y, bias};
    return;
  }
  device_->launch("add", {map_grid(count(x))}, {256}, 0, x.data, static_cast<const float*>(y.data), static_cast<u64>(count(x)));
}

void CudaBackend::swiglu(ops::Matrix gate, ops::Matrix up, ops::Matrix out) {
  if (collect_ffn(gate, up, out)) return;
  PendingGemv* gemv = pending_with_out(gate.data);
  if (gemv != nullptr && gemv->args.segment_count == 2 && gemv->args.segments[1].out == up.data &&
      gemv->args.segments[0].rows == gemv->args.segments[1].rows && gemv->args.m == gate.rows) {
    gemv->args.paired = 1;
    gemv->args.swiglu_out = out.data;
    // `out` may be one of the inputs: then the sum itself is not kept, as it would not be without fusion.
    for (GemvSegment& segment : gemv->args.segments) {
      if (segment.out == out.data) segment.out = nullptr;
    }
    flush();
    return;
  }
  flush();
  if (unsigned short* twin = bf16_twin(out)) {
    device_->launch("swiglu_bf16", {map_grid(count(out) / 4)}, {256}, 0, out.data, twin, static_cast<const float*>(gate.data),
                    static_cast<const float*>(up.data), static_cast<u64>(count(out) / 4));
    return;
  }
  device_->launch("swiglu", {map_grid(count(out))}, {256}, 0, out.data, static_cast<const float*>(gate.data),
                  static_cast<const float*>(up.data), static_cast<u64>(count(out)));
}

void CudaBackend::embed(const ops::Weight& table, const std::int32_t* ids, ops::Matrix out) {
  flush();
  const auto& weight = static_cast<const CudaWeight&>(table);
  const std::string kernel = fmt::format("rows_{}_f32", weight.format);
  device_->launch(kernel.c_str(), {weight.unpacking_blocks(), row_grid(out.rows)}, {128}, 0, out.data,
                  static_cast<const unsigned char*>(weight.data), static_cast<u64>(weight.elements),
                  static_cast<const int*>(ids), 0, static_cast<int>(out.rows), static_cast<int>(out.cols));
}

void CudaBackend::byte_values(const std::uint8_t* bytes, const float* table, std::int64_t plane, ops::Matrix out) {
  flush();
  device_->launch("byte_values", {row_grid(out.rows)}, {128}, 0, out.data, bf16_twin(out), bytes, table, static_cast<int>(plane),
                  static_cast<int>(out.rows), static_cast<int>(out.cols));
}

void CudaBackend::gather_rows(ops::Matrix x, const std::int32_t* rows, ops::Matrix out) {
  // Gathering from one row can only copy it: a norm that is still waiting then writes both.
  if (pending_norm_ && pending_norm_->out == x.data && x.rows == 1 && out.rows == 1 && !pending_norm_->out_copy) {
    pending_norm_->out_copy = out.data;
    return;
  }
  flush();
  device_->launch("gather_rows", {row_grid(out.rows)}, {128}, 0, out.data, static_cast<const float*>(x.data),
                  static_cast<const int*>(rows), static_cast<int>(out.rows), static_cast<int>(out.cols));
}

void CudaBackend::scatter_rows(ops::Matrix x, const std::int32_t* rows, ops::Matrix out) {
  flush();
  device_->launch("scatter_rows", {row_grid(x.rows)}, {128}, 0, out.data, static_cast<const float*>(x.data),
                  static_cast<const int*>(rows), static_cast<int>(x.rows), static_cast<int>(x.cols));
}

void CudaBackend::layer_norm(ops::Matrix x, const float* weight, const float* bias, float eps, ops::Matrix out) {
  LayerNormArgs args{};
  if (pending_add_ && pending_add_->x.data == x.data && pending_add_->x.rows == x.rows && pending_add_->x.cols == x.cols) {
    args.delta = pending_add_->y.data;
    args.delta_bias = pending_add_->bias;
    pending_add_.reset();
  }
  flush();
  const bool quads = x.cols % 4 == 0;
  args.out = out.data;
  args.twin = quads && x.cols <= kLayerNormHeld ? bf16_twin(out) : nullptr;
  args.x = x.data;
  args.weight = weight;
  args.bias = bias;
  args.rows = static_cast<int>(x.rows);
  args.cols = static_cast<int>(x.cols);
  args.inverse_cols = 1.0f / static_cast<float>(x.cols);
  args.eps = eps;
  const unsigned threads = quads && x.cols <= 1152 ? 96 : 384;  // norms.cu says why
  device_->launch(args.delta ? "add_layer_norm" : "layer_norm", {row_grid(x.rows)}, {threads}, 0, args);
}

void CudaBackend::gelu(ops::Matrix x, ops::Gelu kind) {
  const float* bias = take_bias(x);
  flush();
  if (bias != nullptr) {
    device_->launch(kind == ops::Gelu::tanh ? "gelu_tanh_biased" : "gelu_erf_biased", {row_grid(x.rows)}, {256}, 0, x.data, bf16_twin(x), bias,
                    static_cast<int>(x.rows), static_cast<int>(x.cols));
    return;
  }
  run_map(kind == ops::Gelu::tanh ? "gelu_tanh" : "gelu_erf", x.data, count(x));
}

void CudaBackend::add_weighted_rows(ops::Matrix table, const std::int32_t* rows, const float* weights, int per_row,
                                    ops::Matrix out) {
  flush();
  device_->launch("add_weighted_rows", {row_grid(out.rows)}, {128}, 0, out.data, static_cast<const float*>(table.data),
                  static_cast<const int*>(rows), weights, per_row, static_cast<int>(out.rows), static_cast<int>(out.cols));
}

void CudaBackend::argmax(ops::Matrix logits, std::int32_t* ids) {
  flush();
  constexpr unsigned kParts = 64;
  for (std::int64_t r = 0; r < logits.rows; r += kGridMost) {
    const auto rows = static_cast<unsigned>(std::min(kGridMost, logits.rows - r));
    auto* values = static_cast<float*>(scratch(kSlotArgmax, rows * kParts * 8));
    auto* indices = reinterpret_cast<int*>(values + rows * kParts);
    device_->launch("argmax_parts", {kParts, rows}, {256}, 0, values, indices,
                    static_cast<const float*>(logits.data + r * logits.cols), static_cast<int>(logits.cols));
    device_->launch("argmax_final", {rows}, {256}, 0, static_cast<int*>(ids) + r, static_cast<const float*>(values),
                    static_cast<const int*>(indices));
  }
}

}  // namespace heirloom::cuda
