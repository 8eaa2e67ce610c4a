#include "engine/model_key.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/check.h"

namespace heirloom::engine {
namespace {

// Raised whenever a kernel or the forward pass changes the numbers of a state.
constexpr std::uint32_t kNumericsVersion = 1;
constexpr std::uint64_t kWholeBytes = 2ull << 30;
constexpr std::size_t kSampleEvery = 1 << 20, kSampleBytes = 4096;

class Hasher {
 public:
  Hasher() : state_(XXH3_createState(), XXH3_freeState) { XXH3_128bits_reset(state_.get()); }
  void add(const void* data, std::size_t bytes) { XXH3_128bits_update(state_.get(), data, bytes); }
  void add(std::string_view text) {
    add_number(text.size());
    add(text.data(), text.size());
  }
  void add_number(std::uint64_t value) { add(&value, sizeof(value)); }
  Key128 key() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    Key128 result;
    std::memcpy(result.data(), &hash, sizeof(hash));
    return result;
  }

 private:
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state_;
};

void add_weights(Hasher& hasher, const TensorSource& source) {
  std::uint64_t total = 0;
  for (const std::string& name : source.names()) {
    if (const TensorView* tensor = source.find(name)) total += tensor->data.size();
  }
  for (const std::string& name : source.names()) {
    const TensorView* tensor = source.find(name);
    if (tensor == nullptr) continue;
    hasher.add(name);
    hasher.add_number(static_cast<std::uint64_t>(tensor->type));
    for (const std::uint64_t size : tensor->shape) hasher.add_number(size);
    const std::span<const std::byte> data = tensor->data;
    if (total <= kWholeBytes) {
      hasher.add(data.data(), data.size());
    } else {
      for (std::size_t at = 0; at < data.size(); at += kSampleEvery) {
        hasher.add(data.data() + at, std::min(kSampleBytes, data.size() - at));
      }
      const std::size_t end = std::min(kSampleBytes, data.size());
      hasher.add(data.data() + data.size() - end, end);
    }
    source.release(*tensor);
  }
}

/// A backend's description without its number of threads, which changes no result (ops/backend.h).
std::string arithmetic(const std::string& description) {
  const std::size_t comma = description.rfind(", ");
  return comma != std::string::npos && description.find("thread", comma) != std::string::npos ? description.substr(0, comma)
                                                                                              : description;
}

}  // namespace

Key128 model_key(const model::ModelFiles& files, const ops::Backend& backend, const EngineOptions& options,
                 const ops::StateShape& shape) {
  Hasher hasher;
  hasher.add_number(kNumericsVersion);
  hasher.add(arithmetic(backend.description()));
  hasher.add(options.gemm);
  hasher.add(options.profile);
  for (const int value : {shape.num_gdn_layers, shape.conv_kernel, shape.conv_channels, shape.num_v_heads, shape.head_k_dim,
                          shape.head_v_dim, shape.num_attention_layers, shape.num_kv_heads, shape.head_dim,
                          static_cast<int>(shape.kv_type)}) {
    hasher.add_number(static_cast<std::uint64_t>(value));
  }
  add_weights(hasher, *files.text);
  if (files.vision && files.vision != files.text) add_weights(hasher, *files.vision);
  return hasher.key();
}

}  // namespace heirloom::engine
