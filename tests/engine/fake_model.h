// A deterministic stand-in for a model: integer hashing in place of a forward pass. Its logits depend on every earlier
// token through both kinds of state (recurrent and conv blocks, and every KV slot), so that a wrong, stale or shared page
// or state changes them. Tests of states, cache and scheduler use it; nothing here computes what the engine computes.
#pragma once

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <stdexcept>
#include <thread>

#include "base/check.h"
#include "model/model.h"

namespace heirloom::test {

/// Host memory; only what the engine itself calls. Counts what is allocated.
class FakeBackend : public ops::Backend {
 public:
  bool captures = true;
  bool host_memory = true;  // false: the engine may touch memory through the functions below only
  std::uint64_t limit_bytes = ~std::uint64_t{0};
  std::atomic<std::uint64_t> allocated_bytes{0};

  void* alloc(std::size_t bytes) override {
    if (allocated_bytes + bytes > limit_bytes) {
      fail(ErrorKind::does_not_fit, "fake backend: {} bytes more than the {} there are", bytes, limit_bytes);
    }
    allocated_bytes += bytes;
    void* data = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    std::memset(data, 0xa5, bytes);  // nothing may rely on zeroed memory
    return data;
  }
  void free(void* data, std::size_t bytes) noexcept override {
    allocated_bytes -= bytes;
    std::free(data);
  }
  void upload(void* device, const void* host, std::size_t bytes) override { std::memcpy(device, host, bytes); }
  void download(void* host, const void* device, std::size_t bytes) override { std::memcpy(host, device, bytes); }
  void copy(void* to, const void* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
  void zero(void* device, std::size_t bytes) override { std::memset(device, 0, bytes); }
  void synchronize() override {}
  std::string description() const override { return "fake"; }
  bool is_host_memory() const override { return host_memory; }
  bool captures_states() const override { return captures; }
  void argmax(ops::Matrix logits, std::int32_t* ids) override {
    for (std::int64_t r = 0; r < logits.rows; ++r) {
      const float* row = logits.data + r * logits.cols;
      std::int32_t best = 0;
      for (std::int32_t i = 1; i < logits.cols; ++i) {
        if (row[i] > row[best]) best = i;
      }
      ids[r] = best;
    }
  }

  [[noreturn]] static void unused() { throw std::logic_error("the fake model uses no ops"); }
  std::unique_ptr<ops::Weight> load_weight(const ops::WeightData&) override { unused(); }
  bool begin_step(const ops::StepPlan&, std::uint64_t) override { unused(); }
  void end_step() override { unused(); }
  void embed(const ops::Weight&, const std::int32_t*, ops::Matrix) override { unused(); }
  void rms_norm(ops::Matrix, const float*, float, ops::Matrix) override { unused(); }
  void add_rms_norm(ops::Matrix, ops::Matrix, const float*, float, ops::Matrix) override { unused(); }
  void add(ops::Matrix, ops::Matrix) override { unused(); }
  void linear(ops::Matrix, std::span<const ops::LinearOut>) override { unused(); }
  void swiglu(ops::Matrix, ops::Matrix, ops::Matrix) override { unused(); }
  void byte_values(const std::uint8_t*, const float*, std::int64_t, ops::Matrix) override { unused(); }
  void gather_rows(ops::Matrix, const std::int32_t*, ops::Matrix) override { unused(); }
  void scatter_rows(ops::Matrix, const std::int32_t*, ops::Matrix) override { unused(); }
  void gdn_mixer(int, const ops::GdnWeights&, ops::Matrix, ops::Matrix, ops::Matrix, ops::Matrix, ops::Matrix,
                 const ops::GdnTaps*) override { unused(); }
  void attention_mixer(int, const ops::AttentionWeights&, ops::Matrix, ops::Matrix, ops::Matrix, const float*, const float*,
                       ops::Matrix, const ops::AttentionTaps*) override { unused(); }
  void moe_ffn(ops::Matrix, const ops::MoeWeights&, ops::Matrix, const ops::MoeTaps*) override { unused(); }
  void layer_norm(ops::Matrix, const float*, const float*, float, ops::Matrix) override { unused(); }
  void gelu(ops::Matrix, ops::Gelu) override { unused(); }
  void add_weighted_rows(ops::Matrix, const std::int32_t*, const float*, int, ops::Matrix) override { unused(); }
  void segment_attention(ops::Matrix, ops::Matrix, ops::Matrix, int, std::span<const std::int32_t>, const float*, const float*,
                         ops::Matrix) override { unused(); }
};

class FakeModel : public model::Model {
 public:
  explicit FakeModel(FakeBackend& backend, int vocab_size = 97) : backend_(backend) {
    config_.text.vocab_size = vocab_size;
    config_.text.hidden_size = 4;
    config_.text.context_length = 1 << 20;
    shape_.num_gdn_layers = 1;
    shape_.conv_kernel = 4;
    shape_.conv_channels = 1;
    shape_.num_v_heads = 1;
    shape_.head_k_dim = 2;
    shape_.head_v_dim = 2;
    shape_.num_attention_layers = 2;
    shape_.num_kv_heads = 1;
    shape_.head_dim = 2;
  }

  const model::ModelConfig& config() const override { return config_; }
  ops::Backend& backend() override { return backend_; }
  ops::StateShape state_shape(DType) const override { return shape_; }
  bool has_vision() const override { return true; }
  std::uint64_t active_parameters(bool) const override { return 0; }
  std::uint64_t active_weight_bytes() const override { return 0; }
  std::uint64_t weight_bytes() const override { return 0; }

  model::StepOutput forward(const model::StepInput& input, model::Taps*) override {
    if (before_forward) before_forward(input);
    const auto rows = static_cast<std::size_t>(input.plan.num_rows);
    HEIRLOOM_CHECK(input.token_ids.size() == rows && input.positions.size() == 3 * rows);
    const auto vocab = static_cast<std::size_t>(config_.text.vocab_size);
    hidden_.assign(rows * 4, 0.0f);
    std::vector<std::uint32_t> summaries(rows);
    std::int32_t next_row = 0;
    for (const ops::SequenceStep& part : input.plan.sequences) {
      HEIRLOOM_CHECK(part.first_row == next_row && part.num_rows > 0);
      next_row += part.num_rows;
      std::size_t capture = 0;
      for (std::int32_t i = 0; i < part.num_rows; ++i) {
        const auto row = static_cast<std::size_t>(part.first_row + i);
        std::uint32_t value = static_cast<std::uint32_t>(input.token_ids[row]) * 2654435761u;
        for (const model::FeatureRows& feature : input.features) {
          if (static_cast<std::int32_t>(row) >= feature.first_row && static_cast<std::int32_t>(row) < feature.first_row + feature.count) {
            std::memcpy(&value, feature.features + (static_cast<std::int32_t>(row) - feature.first_row) * 4, 4);
          }
        }
        if (rounds_by_shape && rows > input.plan.sequences.size()) value = mix(value, static_cast<std::uint32_t>(rows));
        for (std::size_t axis = 0; axis < 3; ++axis) value = mix(value, static_cast<std::uint32_t>(input.positions[axis * rows + row]));
        summaries[row] = run_row(part, part.past_tokens + i, value);
        for (std::size_t k = 0; k < 4; ++k) hidden_[row * 4 + k] = static_cast<float>(mix(value, static_cast<std::uint32_t>(k)) % 1000);
        if (capture < part.captures.size() && part.captures[capture].rows == i + 1) {
          std::memcpy(part.captures[capture].conv, part.conv, shape_.conv_floats() * 4);
          std::memcpy(part.captures[capture].recurrent, part.recurrent, shape_.recurrent_floats() * 4);
          ++capture;
        }
      }
      HEIRLOOM_CHECK(capture == part.captures.size());
    }
    rows_run += rows;
    largest_step = std::max<std::int64_t>(largest_step, static_cast<std::int64_t>(rows));
    logits_.resize(input.logits_rows.size() * vocab);
    for (std::size_t r = 0; r < input.logits_rows.size(); ++r) {
      for (std::size_t v = 0; v < vocab; ++v) {
        logits_[r * vocab + v] =
            static_cast<float>(mix(summaries[static_cast<std::size_t>(input.logits_rows[r])], static_cast<std::uint32_t>(v)) % 100003) / 5000.0f;
      }
      if (after_logits) after_logits(std::span(logits_).subspan(r * vocab, vocab));
    }
    return {{logits_.data(), static_cast<std::int64_t>(input.logits_rows.size()), static_cast<std::int64_t>(vocab)},
            {hidden_.data(), static_cast<std::int64_t>(rows), 4}};
  }

  /// Token t of a picture is its pixels' sum and t, as bits.
  model::VisionOutput encode_image(const model::VisionInput& input, model::Taps*) override {
    ++images_encoded;
    if (before_encode) before_encode();
    model::VisionOutput output;
    output.tokens = input.grids.front().h * input.grids.front().w;
    output.features = backend_.make_buffer(static_cast<std::size_t>(output.tokens) * 16);
    std::uint32_t sum = 0;
    for (const std::uint8_t pixel : input.pixels) sum = mix(sum, pixel);
    for (std::int64_t t = 0; t < output.tokens; ++t) {
      const std::uint32_t bits = mix(sum, static_cast<std::uint32_t>(t));
      std::memcpy(output.features.f32() + t * 4, &bits, 4);
    }
    return output;
  }

  static std::uint32_t mix(std::uint32_t a, std::uint32_t b) {
    std::uint32_t h = (a ^ (b + 0x9e3779b9u + (a << 6) + (a >> 2))) * 0x85ebca6bu;
    h ^= h >> 13;
    h *= 0xc2b2ae35u;
    return h ^ (h >> 16);
  }

  std::function<void(const model::StepInput&)> before_forward;  // may throw
  std::function<void()> before_encode;
  std::function<void(std::span<float>)> after_logits;
  bool rounds_by_shape = false;  // as a GPU: numbers of prefill depend on how many rows share the step
  std::atomic<std::uint64_t> rows_run{0};
  std::atomic<int> images_encoded{0};
  std::int64_t largest_step = 0;

 private:
  std::uint32_t run_row(const ops::SequenceStep& part, std::int32_t position, std::uint32_t value) {
    std::uint32_t recurrent[4], conv[4];
    std::memcpy(recurrent, part.recurrent, sizeof(recurrent));
    std::memcpy(conv, part.conv, sizeof(conv));
    std::memmove(conv, conv + 1, 3 * sizeof(std::uint32_t));
    conv[3] = value;
    recurrent[0] = mix(recurrent[0], value);
    recurrent[1] = mix(recurrent[1], recurrent[0] ^ conv[0]);
    recurrent[2] = mix(recurrent[2], conv[1] + conv[2]);
    recurrent[3] = mix(recurrent[3], recurrent[1]);
    std::memcpy(part.recurrent, recurrent, sizeof(recurrent));
    std::memcpy(part.conv, conv, sizeof(conv));
    // Page layout [layers, 2, kv_heads, 64, head_dim]: one value in every (layer, k or v) strip.
    const auto slot = [&](std::int32_t p, std::size_t strip) {
      return part.pages[static_cast<std::size_t>(p / 64)] + ((strip * 64 + static_cast<std::size_t>(p % 64)) * 2) * sizeof(float);
    };
    for (std::size_t strip = 0; strip < 4; ++strip) {
      const std::uint32_t kv[2] = {mix(value, static_cast<std::uint32_t>(position)), mix(value, static_cast<std::uint32_t>(strip))};
      std::memcpy(slot(position, strip), kv, sizeof(kv));
    }
    std::uint32_t attention = 0;
    for (std::int32_t p = 0; p <= position; ++p) {
      std::uint32_t kv[2];
      std::memcpy(kv, slot(p, static_cast<std::size_t>(p) % 4), sizeof(kv));
      attention = attention * 31 + (kv[0] ^ kv[1]);
    }
    return mix(mix(recurrent[0], recurrent[1]), mix(mix(recurrent[2], recurrent[3]), attention));
  }

  FakeBackend& backend_;
  model::ModelConfig config_;
  ops::StateShape shape_;
  std::vector<float> logits_, hidden_;
};

}  // namespace heirloom::test
