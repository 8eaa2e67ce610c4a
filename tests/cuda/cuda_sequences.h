// A step's sequences for tests of the mixers: states and pages on the device and, with the same values, on the host.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "cuda/cuda_cases.h"

namespace heirloom::test {

struct Part {
  int rows, past;
};

/// Sequences with states and pages on both sides; the past of caches is random.
struct Sequences {
  ops::StateShape shape;
  std::vector<std::unique_ptr<Both>> conv, recurrent;
  std::vector<ops::Buffer> device_pages;
  std::vector<std::vector<std::byte>> host_pages;
  std::vector<std::vector<std::byte*>> device_page_lists, host_page_lists;
  ops::StepPlan device, host;

  Sequences(ops::Backend& backend, const ops::StateShape& s, const std::vector<Part>& parts) : shape(s) {
    device.shape = host.shape = shape;
    unsigned seed = 100;
    std::int32_t row = 0;
    for (const Part& part : parts) {
      conv.push_back(std::make_unique<Both>(backend, 1, std::max<std::int64_t>(1, static_cast<std::int64_t>(shape.conv_floats())), seed++));
      recurrent.push_back(
          std::make_unique<Both>(backend, 1, std::max<std::int64_t>(1, static_cast<std::int64_t>(shape.recurrent_floats())), seed++, 0.3f));
      const int pages = shape.num_attention_layers == 0 ? 0 : (part.past + part.rows + 63) / 64;
      device_page_lists.emplace_back();
      host_page_lists.emplace_back();
      for (int p = 0; p < pages; ++p) {
        // The past of the cache: random values of the cache's type.
        const std::size_t n = shape.page_bytes() / dtype_info(shape.kv_type).block_bytes;
        const std::vector<float> plain = random_floats(n, seed++);
        std::vector<std::byte> bytes(shape.page_bytes());
        for (std::size_t i = 0; i < n; ++i) {
          const std::uint16_t half = shape.kv_type == DType::f16 ? f32_to_f16(plain[i]) : f32_to_bf16(plain[i]);
          if (shape.kv_type == DType::f32) std::memcpy(bytes.data() + 4 * i, &plain[i], 4);
          else std::memcpy(bytes.data() + 2 * i, &half, 2);
        }
        device_pages.push_back(backend.make_buffer(bytes.size()));
        backend.upload(device_pages.back().data(), bytes.data(), bytes.size());
        host_pages.push_back(bytes);
        device_page_lists.back().push_back(static_cast<std::byte*>(device_pages.back().data()));
      }
      host.sequences.push_back({row, part.rows, part.past, conv.back()->values().data(), recurrent.back()->values().data(), {}, {}});
      device.sequences.push_back({row, part.rows, part.past, conv.back()->device().data, recurrent.back()->device().data, {}, {}});
      row += part.rows;
    }
    std::size_t next = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      for (std::size_t p = 0; p < device_page_lists[i].size(); ++p) host_page_lists[i].push_back(host_pages[next++].data());
      device.sequences[i].pages = device_page_lists[i];
      host.sequences[i].pages = host_page_lists[i];
    }
    device.num_rows = host.num_rows = row;
  }
};

}  // namespace heirloom::test
