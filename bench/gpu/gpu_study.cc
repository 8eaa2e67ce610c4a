// Speed of the GPU backend on full-size synthetic models, without files: decode and prefill tok/s at growing context, bytes a
// token, time by kernel. Prints one line a measurement: minimum, median and maximum over the repeats.
//
//   gpu_study [--model dense|moe] [--linears q8_0|q4_0|...] [--head q8_0] [--prefill 947,4096] [--decode 128] [--depth 0,10240]
//             [--repeat 5] [--arch sm20] [--fermi] [--gemm f32|bf16] [--kv f32|f16] [--no-graphs] [--no-fusion] [--kernels]
//             [--sequential-gdn]
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
#include "model/hybrid_decoder.h"
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
  if (name == "dense") {  // Qwen3.5-0.8B, and the language model of MiniCPM-V-4.6
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
    for (const DType type : {linears, head, DType::f32, DType::q8_0}) {
      auto& pool = pools_[type];
      if (!pool.empty()) continue;
      pool.resize(std::size_t{640} << 20);
      for (std::size_t i = 0; i + 4 <= pool.size(); i += 4) {
        const auto bits = static_cast<std::uint32_t>(engine());
        std::memcpy(pool.data() + i, &bits, 4);
      }
      const DTypeInfo& info = dtype_info(type);
      if (type == DType::f32) {
        for (std::size_t i = 0; i + 4 <= pool.size(); i += 4) {
          const float value = static_cast<float>(engine() % 2001) * 1e-5f - 1e-2f;
          std::memcpy(pool.data() + i, &value, 4);
        }
      } else {
        const std::uint16_t scale = f32_to_f16(type == DType::q8_0 ? 4e-4f : type == DType::q6_k ? 2e-5f : 4e-3f);
        const std::size_t at = type == DType::q6_k ? 208 : 0;
        for (std::size_t i = 0; i + info.block_bytes <= pool.size(); i += info.block_bytes) {
          std::memcpy(pool.data() + i + at, &scale, 2);
          if (type == DType::q4_k || type == DType::q5_k) std::memcpy(pool.data() + i + 2, &scale, 2);
        }
      }
    }
  }
  const TensorView* find(std::string_view name) const override {
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
    if (has("token_embd") || name == "output.weight") view.shape = {u(c.vocab_size), H}, view.type = head_;
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
  cuda::CudaBackendOptions settings;
  settings.fuse = !options.contains("no-fusion");
  if (options.contains("sequential-gdn")) settings.gdn_recurrent_rows = 1 << 30;
  if (get("gemm", "") == "f32") settings.gemm = cuda::GemmType::f32;
  if (get("gemm", "") == "bf16") settings.gemm = cuda::GemmType::bf16;
  cuda::CudaBackend backend(cuda::open_device(device), settings);

  model::ModelConfig config;
  const std::string name = get("model", "dense");
  config.text = config_of(name);
  if (name == "moe") config.family = model::Family::qwen3_5_moe;
  const DType linears = parse_dtype(get("linears", name == "moe" ? "q4_0" : "q8_0")).value();
  const DType head = parse_dtype(get("head", name == "moe" ? "q6_k" : "q8_0")).value();
  auto start = Clock::now();
  auto source = std::make_shared<SyntheticSource>(config.text, linears, head);
  const model::WeightReader reader(model::WeightReader::Naming::gguf, config, source, nullptr);
  const double made_ms = ms_since(start);
  start = Clock::now();
  model::HybridDecoder decoder(backend, config.text, reader, {});
  std::printf("%s %s, %s, synthetic weights made in %.0f ms, uploaded in %.0f ms; %.1f MB of weights, %.1f MB a token\n",
              name.c_str(), std::string(dtype_name(linears)).c_str(), backend.description().c_str(), made_ms, ms_since(start),
              static_cast<double>(decoder.weight_bytes()) * 1e-6, static_cast<double>(decoder.active_weight_bytes()) * 1e-6);
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
  for (const int n : numbers(get("prefill", "947,4096"))) {
    std::vector<double> rates;
    Sequence sequence(backend, shape, n + 64);
    for (int r = 0; r <= repeat; ++r) {
      backend.zero(sequence.recurrent.data(), sequence.recurrent.bytes());
      backend.device().reset_kernel_times();
      backend.synchronize();
      start = Clock::now();
      finish(decoder.forward(sequence.step(0, n), nullptr));
      if (r > 0) rates.push_back(n / ms_since(start) * 1e3);
    }
    print_rates("prefill", n, 0, rates);
    report_kernels(1);
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
