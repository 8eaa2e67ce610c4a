// Speed of the GPU backend on full-size synthetic models, without files: decode and prefill tok/s at growing context, bytes a
// token, time by kernel. Prints one line a measurement: minimum, median and maximum over the repeats.
//
//   gpu_study [--model dense|moe|vision] [--linears q8_0|q4_0|...] [--head q8_0] [--prefill 947,4096] [--decode 128] [--depth 0,10240]
//             [--repeat 5] [--arch sm20] [--fermi] [--gemm f32|bf16] [--kv f32|f16] [--no-graphs] [--no-fusion] [--kernels]
//             [--sequential-gdn] [--vram MiB] [--hybrid] [--threads N] [--host-rows N] [--pageable] [--chunks N]
//             [--timeline FILE] [--expert-mib N]
// --hybrid keeps experts in host memory; --chunks also measures prefill in N steps; --timeline writes one line a streamed tensor.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <string>

#include "backend/cuda/cuda_backend.h"
#include "base/check.h"
#include "base/half.h"
#include "base/log.h"
#include "engine/cpu_experts.h"
#include "model/hybrid_decoder.h"
#include "model/vision_tower.h"
#include "model/weight_reader.h"

namespace heirloom {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) { return std::chrono::duration<double, std::milli>(Clock::now() - start).count(); }

model::TextConfig config_of(const std::string& name) {
  model::TextConfig c;
  c.vocab_size = 248320;
  c.num_kv_heads = 2;
  c.head_dim = 256;
  c.rotary_dim = 64;
  c.linear_num_k_heads = 16;
  c.linear_head_k_dim = c.linear_head_v_dim = 128;
  if (name != "moe") {  // Qwen3.5-0.8B, and the language model of MiniCPM-V-4.6
    c.hidden_size = 1024;
    c.num_layers = 24;
    c.num_q_heads = 8;
    c.linear_num_v_heads = 16;
    c.intermediate_size = 3584;
    c.tie_word_embeddings = true;
  } else {  // Qwen3.5-35B-A3B with half of its experts
    c.hidden_size = 2048;
    c.num_layers = 40;
    c.num_q_heads = 16;
    c.linear_num_v_heads = 32;
    c.v_heads_tiled = true;
    c.num_experts = 128;
    c.num_experts_per_token = 8;
    c.moe_intermediate_size = c.shared_expert_intermediate_size = 512;
  }
  for (int i = 0; i < c.num_layers; ++i) {
    c.layer_types.push_back(i % 4 == 3 ? model::LayerType::full_attention : model::LayerType::linear_attention);
  }
  return c;
}

// Any tensor that is asked for: random bytes with sane scales, cut from one pool.
class SyntheticSource : public TensorSource {
 public:
  SyntheticSource(const model::TextConfig& config, DType linears, DType head) : config_(config), linears_(linears), head_(head) {
    std::mt19937 engine(1);
    for (const DType type : {linears, head, DType::f32, DType::q8_0, DType::f16}) {
      auto& pool = pools_[type];
      if (!pool.empty()) continue;
      // Whole blocks of every type, repeated: distinct addresses are what matters to a cache.
      std::vector<std::byte> piece(942480 * 20);
      const DTypeInfo& info = dtype_info(type);
      for (std::size_t i = 0; i + 4 <= piece.size(); i += 4) {
        const auto bits = static_cast<std::uint32_t>(engine());
        const float value = static_cast<float>(bits % 2001) * 1e-5f - 1e-2f;
        if (type == DType::f32) std::memcpy(piece.data() + i, &value, 4);
        else if (type == DType::f16) {
          const std::uint16_t half = f32_to_f16(value);
          std::memcpy(piece.data() + i, &half, 2);
          std::memcpy(piece.data() + i + 2, &half, 2);
        } else std::memcpy(piece.data() + i, &bits, 4);
      }
      if (type != DType::f16 && type != DType::f32) {
        const std::uint16_t scale = f32_to_f16(type == DType::q8_0 ? 4e-4f : type == DType::q6_k ? 2e-5f : 4e-3f);
        const std::size_t at = type == DType::q6_k ? 208 : 0;
        for (std::size_t i = 0; i + info.block_bytes <= piece.size(); i += info.block_bytes) {
          std::memcpy(piece.data() + i + at, &scale, 2);
          if (type == DType::q4_k || type == DType::q5_k) std::memcpy(piece.data() + i + 2, &scale, 2);
        }
      }
      while (pool.size() < std::size_t{640} << 20) pool.insert(pool.end(), piece.begin(), piece.end());
    }
  }
  const TensorView* find(std::string_view name) const override {
    if (name.find("attn_qkv") != std::string_view::npos && name.starts_with("v.")) return nullptr;  // q, k and v apart
    auto& view = views_[std::string(name)];
    if (!view.name.empty()) return &view;
    view.name = name;
    const auto has = [&](const char* part) { return name.find(part) != std::string_view::npos; };
    const auto& c = config_;
    const auto u = [](auto v) { return static_cast<std::uint64_t>(v); };
    const std::uint64_t H = u(c.hidden_size), K = u(c.linear_num_k_heads * c.linear_head_k_dim),
                        V = u(c.linear_num_v_heads * c.linear_head_v_dim), C = 2 * K + V, E = u(c.num_experts),
                        Q = u(c.num_q_heads * c.head_dim), KV = u(c.num_kv_heads * c.head_dim), I = u(c.moe_intermediate_size),
                        F = u(c.num_experts ? c.shared_expert_intermediate_size : c.intermediate_size), nv = u(c.linear_num_v_heads);
    view.type = linears_;
    if (name.starts_with("v.") || name.starts_with("mm.")) vision_shape(view);
    else if (has("token_embd") || name == "output.weight") view.shape = {u(c.vocab_size), H}, view.type = head_;
    else if (has("ssm_norm")) view.shape = {u(c.linear_head_v_dim)}, view.type = DType::f32;
    else if (has("attn_q_norm") || has("attn_k_norm")) view.shape = {u(c.head_dim)}, view.type = DType::f32;
    else if (has("norm")) view.shape = {H}, view.type = DType::f32;
    else if (has("ssm_conv1d")) view.shape = {C, 4}, view.type = DType::f32;
    else if (has("ssm_dt") || has("ssm_a.") || name.ends_with("ssm_a")) view.shape = {nv}, view.type = DType::f32;
    else if (has("ssm_alpha") || has("ssm_beta")) view.shape = {nv, H}, view.type = DType::q8_0;
    else if (has("ssm_out")) view.shape = {H, V};
    else if (has("attn_qkv")) view.shape = {C, H};
    else if (has("attn_gate")) view.shape = {V, H};
    else if (has("attn_q.")) view.shape = {2 * Q, H};
    else if (has("attn_k.") || has("attn_v.")) view.shape = {KV, H};
    else if (has("attn_output")) view.shape = {H, Q};
    else if (has("gate_inp_shexp")) view.shape = {1, H}, view.type = DType::f32;
    else if (has("gate_inp")) view.shape = {E, H}, view.type = DType::f32;
    else if (has("down_exps")) view.shape = {E, H, I};
    else if (has("_exps")) view.shape = {E, I, H};
    else if (has("ffn_down")) view.shape = {H, F};
    else if (has("ffn_")) view.shape = {F, H};
    else fail(ErrorKind::internal, "synthetic model: no shape for {}", name);
    const std::uint64_t bytes = view.rows() * row_bytes(view.type, view.cols());
    const auto& pool = pools_.at(view.type);
    HEIRLOOM_CHECK(bytes <= pool.size());
    const std::uint64_t block = dtype_info(view.type).block_bytes;
    next_ = next_ + bytes > pool.size() ? 0 : next_ / block * block;
    view.data = std::span(pool).subspan(next_, bytes);
    next_ += bytes;
    return &view;
  }
  const std::vector<std::string>& names() const override { return names_; }
  void release(const TensorView&) const noexcept override {}
  const std::filesystem::path& path() const override { return path_; }

 private:
  // SigLIP2 so400m with MiniCPM-V-4.6's window merger and projector.
  static void vision_shape(TensorView& view) {
    const std::uint64_t H = 1152, I = 4304, S = 4 * H;
    const bool bias = view.name.ends_with(".bias");
    const auto has = [&](const char* part) { return view.name.find(part) != std::string::npos; };
    std::uint64_t rows = H, cols = H;
    if (has("patch_embd")) cols = 3 * 14 * 14;
    else if (has("position_embd")) rows = 4900;
    else if (has("ds_ffn_up")) rows = 4 * I, cols = S;
    else if (has("ds_ffn_down")) cols = 4 * I;
    else if (has("ds_ln") || has("input_norm")) rows = S, cols = 0;
    else if (has("ln")) cols = 0;
    else if (has("ffn_up")) rows = I;
    else if (has("ffn_down")) cols = I;
    else if (view.name.starts_with("mm.up")) rows = cols = S;
    else if (view.name.starts_with("mm.down")) rows = 1024, cols = S;
    view.type = bias || cols == 0 || has("position_embd") ? DType::f32 : DType::f16;
    view.shape = bias || cols == 0 ? std::vector<std::uint64_t>{rows} : std::vector<std::uint64_t>{rows, cols};
  }
  const model::TextConfig& config_;
  DType linears_, head_;
  std::map<DType, std::vector<std::byte>> pools_;
  mutable std::map<std::string, TensorView> views_;
  mutable std::uint64_t next_ = 0;
  std::vector<std::string> names_;
  std::filesystem::path path_ = "synthetic";
};

struct Sequence {
  ops::StateShape shape;
  ops::Buffer conv, recurrent;
  std::vector<ops::Buffer> pages;
  std::vector<std::byte*> page_pointers;

  Sequence(ops::Backend& backend, const ops::StateShape& s, int tokens) : shape(s) {
    conv = backend.make_buffer(shape.conv_floats() * 4);
    recurrent = backend.make_buffer(shape.recurrent_floats() * 4);
    backend.zero(conv.data(), conv.bytes());
    backend.zero(recurrent.data(), recurrent.bytes());
    for (int p = 0; p < (tokens + 63) / 64; ++p) {
      pages.push_back(backend.make_buffer(shape.page_bytes()));
      backend.zero(pages.back().data(), pages.back().bytes());
      page_pointers.push_back(static_cast<std::byte*>(pages.back().data()));
    }
  }
  model::StepInput step(int past, int rows) {
    model::StepInput input;
    input.plan.shape = shape;
    input.plan.num_rows = rows;
    input.plan.sequences.push_back({0, rows, past, conv.f32(), recurrent.f32(), {}, page_pointers});
    for (int i = 0; i < rows; ++i) input.token_ids.push_back((past + i) * 37 % 1000);
    for (int axis = 0; axis < 3; ++axis) {
      for (int i = 0; i < rows; ++i) input.positions.push_back(past + i);
    }
    input.logits_rows = {rows - 1};
    return input;
  }
};

void print_rates(const char* test, int n, int depth, std::vector<double> rates, const char* note = "") {
  std::ranges::sort(rates);
  std::printf("%-8s n %5d depth %6d   min %10.1f   median %10.1f   max %10.1f tok/s%s\n", test, n, depth, rates.front(),
              rates[rates.size() / 2], rates.back(), note);
  std::fflush(stdout);
}

std::vector<int> numbers(const std::string& text) {
  std::vector<int> out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    out.push_back(std::stoi(text.substr(at, comma - at)));
    at = comma + 1;
  }
  return out;
}

// From pixels to the first token: tower, prefill of the features and a short question, argmax.
int vision_study(cuda::CudaBackend& backend, model::HybridDecoder& decoder, model::ModelConfig& config, const model::WeightReader& reader,
                 int repeat) {
  const auto tower = model::make_minicpm_vision_tower(backend, config.vision, reader);
  std::printf("vision tower: %.1f MB\n", static_cast<double>(tower->weight_bytes()) * 1e-6);
  const ops::Buffer ids = backend.make_buffer(256);
  const std::pair<const char*, std::vector<model::VisionInput::Grid>> pictures[] = {
      {"448x448, one tile", {{1, 32, 32}}},
      {"896x672, whole picture and 4 slices", {{1, 28, 36}, {1, 24, 32}, {1, 24, 32}, {1, 24, 32}, {1, 24, 32}}}};
  for (const auto& [what, grids] : pictures) {
    model::VisionInput input;
    input.grids = grids;
    std::size_t patches = 0;
    for (const auto& grid : grids) patches += static_cast<std::size_t>(grid.h * grid.w);
    std::mt19937 engine(3);
    for (std::size_t i = 0; i < patches * 3 * 14 * 14; ++i) input.pixels.push_back(static_cast<float>(engine() % 2001) * 1e-3f - 1.0f);
    std::vector<double> tower_ms, all_ms;
    const int text = 32;
    int rows = 0;
    for (int r = 0; r <= repeat; ++r) {
      Sequence sequence(backend, decoder.state_shape(DType::f16), 2048);
      backend.synchronize();
      const auto start = Clock::now();
      const model::VisionOutput seen = tower->encode(input, nullptr);
      backend.synchronize();
      const double encoded = ms_since(start);
      rows = static_cast<int>(seen.tokens) + text;
      model::StepInput step = sequence.step(0, rows);
      step.features.push_back({8, static_cast<std::int32_t>(seen.tokens), seen.features.f32()});
      const model::StepOutput out = decoder.forward(step, nullptr);
      backend.argmax(out.logits, ids.i32());
      std::int32_t id = 0;
      backend.download(&id, ids.data(), 4);
      if (r == 0) continue;
      tower_ms.push_back(encoded);
      all_ms.push_back(ms_since(start));
    }
    std::ranges::sort(tower_ms);
    std::ranges::sort(all_ms);
    std::printf("%s: %zu patches, %d rows of prompt; tower median %.2f ms, first token median %.2f ms (min %.2f, max %.2f)\n", what, patches,
                rows, tower_ms[tower_ms.size() / 2], all_ms[all_ms.size() / 2], all_ms.front(), all_ms.back());
  }
  std::printf("device memory: %.1f MiB at most\n", static_cast<double>(backend.device().peak_bytes()) / (1 << 20));
  return 0;
}

int run(const std::map<std::string, std::string>& options) {
  const auto get = [&](const char* name, const char* fallback) {
    const auto found = options.find(name);
    return found == options.end() ? std::string(fallback) : found->second;
  };
  for (const cuda::DeviceReport& report : cuda::list_devices()) std::printf("%s\n", report.line.c_str());
  cuda::DeviceOptions device;
  device.arch = get("arch", "");
  device.fermi = options.contains("fermi");
  device.graphs = !options.contains("no-graphs");
  device.time_kernels = options.contains("kernels");
  device.lock_host = !options.contains("pageable");
  device.vram_bytes = std::stoull(get("vram", "0")) << 20;
  cuda::CudaBackendOptions settings;
  settings.fuse = !options.contains("no-fusion");
  settings.expert_bytes = std::stoull(get("expert-mib", "0")) << 20;
  settings.host_expert_rows = std::stoi(get("host-rows", "16"));
  if (options.contains("hybrid")) {
    cpu::CpuBackendOptions cpu_options;
    cpu_options.threads = std::stoi(get("threads", "0"));
    settings.expert_host = std::make_shared<engine::CpuExperts>(std::make_unique<cpu::CpuBackend>(cpu_options));
  }
  if (options.contains("sequential-gdn")) settings.gdn_recurrent_rows = 1 << 30;
  if (get("gemm", "") == "f32") settings.gemm = cuda::GemmType::f32;
  if (get("gemm", "") == "bf16") settings.gemm = cuda::GemmType::bf16;
  cuda::CudaBackend backend(cuda::open_device(device), settings);

  model::ModelConfig config;
  const std::string name = get("model", "dense");
  config.text = config_of(name);
  if (name == "vision") {
    config.family = model::Family::minicpmv4_6;
    config.vision = {.present = true, .hidden_size = 1152, .intermediate_size = 4304, .depth = 27, .num_heads = 16, .patch_size = 14,
                     .num_position_embeddings = 4900, .out_hidden_size = 1024, .insert_layer_id = 6};
  }
  if (name == "moe") config.family = model::Family::qwen3_5_moe;
  const DType linears = parse_dtype(get("linears", name == "moe" ? "q4_0" : "q8_0")).value();
  const DType head = parse_dtype(get("head", name == "moe" ? "q6_k" : "q8_0")).value();
  auto start = Clock::now();
  auto source = std::make_shared<SyntheticSource>(config.text, linears, head);
  const model::WeightReader reader(model::WeightReader::Naming::gguf, config, source, source);
  const double made_ms = ms_since(start);
  start = Clock::now();
  model::HybridDecoder decoder(backend, config.text, reader, {});
  std::printf("%s %s, %s, synthetic weights made in %.0f ms, uploaded in %.0f ms; %.1f MB of weights, %.1f MB a token\n",
              name.c_str(), std::string(dtype_name(linears)).c_str(), backend.description().c_str(), made_ms, ms_since(start),
              static_cast<double>(decoder.weight_bytes()) * 1e-6, static_cast<double>(decoder.active_weight_bytes()) * 1e-6);
  if (name == "vision") return vision_study(backend, decoder, config, reader, std::stoi(get("repeat", "5")));
  const ops::Buffer ids = backend.make_buffer(256);
  const int repeat = std::stoi(get("repeat", "5"));
  const DType kv = parse_dtype(get("kv", "f16")).value();
  const ops::StateShape shape = decoder.state_shape(kv);
  const auto finish = [&](const model::StepOutput& out) {
    float value = 0;
    backend.download(&value, out.logits.data, 4);
    HEIRLOOM_CHECK(value == value);
  };
  const auto report_kernels = [&](int steps) {
    if (!device.time_kernels) return;
    std::vector<std::pair<std::string, cuda::KernelTime>> times(backend.device().kernel_times().begin(),
                                                                backend.device().kernel_times().end());
    std::ranges::sort(times, [](const auto& a, const auto& b) { return a.second.milliseconds > b.second.milliseconds; });
    for (const auto& [kernel, time] : times) {
      std::printf("    %-32s %7.1f launches a step   %9.3f ms a step\n", kernel.c_str(),
                  static_cast<double>(time.launches) / steps, time.milliseconds / steps);
    }
    backend.device().reset_kernel_times();
  };
  const int chunks = std::stoi(get("chunks", "1"));
  for (const int n : numbers(get("prefill", "947,4096"))) {
    for (const int parts : chunks > 1 ? std::vector<int>{1, chunks} : std::vector<int>{1}) {
      std::vector<double> rates;
      Sequence sequence(backend, shape, n + 64);
      for (int r = 0; r <= repeat; ++r) {
        backend.zero(sequence.recurrent.data(), sequence.recurrent.bytes());
        backend.device().reset_kernel_times();
        backend.synchronize();
        if (backend.expert_stream() && options.contains("timeline") && r == repeat && parts == 1) backend.expert_stream()->start_trace();
        start = Clock::now();
        for (int part = 0, past = 0; part < parts; ++part) {
          const int rows = (n - past) / (parts - part);
          finish(decoder.forward(sequence.step(past, rows), nullptr));
          past += rows;
        }
        if (r > 0) rates.push_back(n / ms_since(start) * 1e3);
      }
      print_rates("prefill", n, 0, rates, parts > 1 ? (" in " + std::to_string(parts) + " chunks").c_str() : "");
      report_kernels(1);
    }
    if (backend.expert_stream() && options.contains("timeline")) {
      std::FILE* file = std::fopen((get("timeline", "timeline") + "_" + std::to_string(n)).c_str(), "w");
      std::fprintf(file, "tensor,copy_begin_ms,copy_end_ms,use_begin_ms,use_end_ms\n");
      double copying = 0, using_it = 0, waiting = 0, last = 0;
      for (const cuda::StreamTrace& t : backend.expert_stream()->stop_trace()) {
        std::fprintf(file, "%zu,%.3f,%.3f,%.3f,%.3f\n", t.tensor, t.copy_begin, t.copy_end, t.use_begin, t.use_end);
        copying += t.copy_end - t.copy_begin;
        if (t.use_begin > last) waiting += t.use_begin - last;
        using_it += t.use_end - std::max(t.use_begin, last);
        last = std::max(last, t.use_end);
      }
      std::fclose(file);
      std::printf("    copies %.1f ms, use of the copied tensors %.1f ms, other work and waiting between them %.1f ms\n", copying, using_it, waiting);
    }
  }
  const int tokens = std::stoi(get("decode", "128"));
  for (const int depth : numbers(get("depth", "0,10240"))) {
    if (tokens == 0) break;
    Sequence sequence(backend, shape, depth + tokens + 64);
    std::vector<double> rates;
    const std::uint64_t before = backend.device().launches();
    for (int r = 0; r <= repeat; ++r) {
      backend.device().reset_kernel_times();
      backend.synchronize();
      start = Clock::now();
      for (int i = 0; i < tokens; ++i) {
        model::StepInput step = sequence.step(depth + i, 1);
        const model::StepOutput out = decoder.forward(step, nullptr);
        backend.argmax(out.logits, ids.i32());
        std::int32_t id = 0;
        backend.download(&id, ids.data(), 4);
      }
      if (r > 0) rates.push_back(tokens / ms_since(start) * 1e3);
    }
    print_rates("decode", tokens, depth, rates);
    std::printf("    %.1f launches a step issued by the host\n",
                static_cast<double>(backend.device().launches() - before) / (tokens * (repeat + 1)));
    report_kernels(tokens);
  }
  std::printf("device memory: %.1f MiB at most\n", static_cast<double>(backend.device().peak_bytes()) / (1 << 20));
  return 0;
}

}  // namespace
}  // namespace heirloom

int main(int argc, char** argv) {
  std::map<std::string, std::string> options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (!name.starts_with("--")) return std::fprintf(stderr, "gpu_study: %s: options start with --\n", argv[i]), 2;
    const bool has_value = i + 1 < argc && std::strncmp(argv[i + 1], "--", 2) != 0;
    options[name.substr(2)] = has_value ? argv[++i] : "";
  }
  try {
    return heirloom::run(options);
  } catch (const heirloom::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return heirloom::exit_code(error.kind());
  }
}
