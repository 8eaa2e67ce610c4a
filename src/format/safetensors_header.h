// The JSON header of a safetensors file as a stream of tensor records. Internal to format/.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace heirloom {

struct SafetensorsRecord {
  std::string name;
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;  // of the data, from the end of the header
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsRecord> tensors;  // in header order
  std::map<std::string, std::string> metadata;
};

/// Parses header text. Structure only: dtype names, sizes and offsets are not judged here. `file` names the
/// file in messages. Throws Error{bad_file}.
SafetensorsHeader parse_safetensors_header(std::string_view text, const std::string& file);

}  // namespace heirloom
