#include "format/safetensors_header.h"

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/json.h"
#include "base/printable.h"

namespace heirloom {
namespace {

constexpr std::size_t kMaxTensors = 131'072;  // the largest published shards hold some ten thousand
constexpr std::size_t kMaxNameBytes = 4'096;
constexpr std::size_t kMaxMetadata = 4'096;
constexpr std::size_t kMaxStringBytes =
    4 << 20;  // the JSON library holds several copies of the string it reads
constexpr std::size_t kMaxDims = 8;
constexpr std::size_t kMaxDepth = 8;  // valid headers have 3: header, tensor, shape

// Walks `{"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "__metadata__": {"k": "v"}}`.
// Unknown fields of a tensor are passed over, as the reference implementation does.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(SafetensorsHeader& header, const std::string& file) : header_(header), file_(file) {}

  bool null() override { return scalar("null"); }
  bool boolean(bool) override { return scalar("a boolean"); }
  bool number_integer(number_integer_t value) override { return scalar(fmt::format("{}", value)); }
  bool number_float(number_float_t, const string_t& text) override { return scalar(printable(text, 40)); }

  bool number_unsigned(number_unsigned_t value) override {
    switch (state_) {
      case State::shape:
        if (tensor_.shape.size() == kMaxDims) refuse("shape", "more than {} dimensions", kMaxDims);
        tensor_.shape.push_back(value);
        return true;
      case State::offsets:
        if (num_offsets_ == 2) refuse("data_offsets", "more than 2 numbers");
        (num_offsets_++ == 0 ? tensor_.begin : tensor_.end) = value;
        return true;
      default:
        return scalar(fmt::format("{}", value));
    }
  }

  bool string(string_t& value) override {
    if (state_ == State::metadata) {
      if (header_.metadata.size() == kMaxMetadata) {
        fail(ErrorKind::bad_file, "{}: header: __metadata__ has more than {} entries", file_, kMaxMetadata);
      }
      header_.metadata[key_] = value;
      return true;
    }
    if (state_ == State::tensor && key_ == "dtype") {
      tensor_.dtype = value;
      has_dtype_ = true;
      return true;
    }
    return scalar("a string");
  }

  bool key(string_t& value) override {
    key_ = value;
    return true;
  }

  bool start_object(std::size_t) override {
    deeper();
    switch (state_) {
      case State::start:
        state_ = State::top;
        return true;
      case State::top:
        if (key_ == "__metadata__") {
          state_ = State::metadata;
        } else {
          start_tensor();
        }
        return true;
      case State::skip:
        return true;
      case State::tensor:
        if (!is_known_field()) return skip();
        break;
      default:
        break;
    }
    return scalar("an object");
  }

  bool end_object() override {
    --depth_;
    if (state_ == State::tensor) finish_tensor();
    leave();
    return true;
  }

  bool start_array(std::size_t) override {
    deeper();
    if (state_ == State::skip) return true;
    if (state_ == State::tensor) {
      if (key_ == "shape") {
        state_ = State::shape;
        tensor_.shape.clear();
        has_shape_ = true;
        return true;
      }
      if (key_ == "data_offsets") {
        state_ = State::offsets;
        num_offsets_ = 0;
        return true;
      }
      if (!is_known_field()) return skip();
    }
    return scalar("an array");
  }

  bool end_array() override {
    --depth_;
    leave();
    return true;
  }

  bool binary(binary_t&) override { return scalar("binary data"); }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& error) override {
    // The header starts after the 8 bytes of its length; the parser counts from 1.
    fail(ErrorKind::bad_file, "{}: offset {}: header: invalid JSON: {}", file_, position + 7,
         json_error_reason(error));
  }

 private:
  enum class State { start, top, metadata, tensor, shape, offsets, skip };

  template <typename... Args>
  [[noreturn]] void refuse(std::string_view field, fmt::format_string<Args...> format, Args&&... args) const {
    const std::string what = fmt::format(format, std::forward<Args>(args)...);
    fail(ErrorKind::bad_file, "{}: header: tensor \"{}\": {}: {}", file_, printable(tensor_.name), field,
         what);
  }

  bool is_known_field() const { return key_ == "dtype" || key_ == "shape" || key_ == "data_offsets"; }

  // A value where the format has no such value, unless it belongs to a field we pass over.
  bool scalar(const std::string& found) {
    switch (state_) {
      case State::start:
        fail(ErrorKind::bad_file, "{}: header: found {}, expected an object of tensors", file_, found);
      case State::top:
        fail(ErrorKind::bad_file, "{}: header: tensor \"{}\": found {}, expected an object", file_,
             printable(key_), found);
      case State::metadata:
        fail(ErrorKind::bad_file, "{}: header: __metadata__ \"{}\": found {}, expected a string", file_,
             printable(key_), found);
      case State::shape:
        refuse("shape", "found {}, expected whole numbers", found);
      case State::offsets:
        refuse("data_offsets", "found {}, expected two whole numbers", found);
      case State::tensor:
        if (is_known_field())
          refuse(key_, "found {}, expected {}", found, key_ == "dtype" ? "a string" : "an array");
        return true;
      case State::skip:
        return true;
    }
    return true;
  }

  void deeper() {
    if (++depth_ > kMaxDepth)
      fail(ErrorKind::bad_file, "{}: header: nested deeper than {} levels", file_, kMaxDepth);
  }

  bool skip() {
    state_ = State::skip;
    skip_depth_ = depth_;
    return true;
  }

  // Called with depth_ already one lower than inside the container that ended.
  void leave() {
    switch (state_) {
      case State::shape:
      case State::offsets:
        state_ = State::tensor;
        break;
      case State::metadata:
      case State::tensor:
        state_ = State::top;
        break;
      case State::skip:
        if (depth_ + 1 == skip_depth_) state_ = State::tensor;
        break;
      default:
        break;
    }
  }

  void start_tensor() {
    if (key_.size() > kMaxNameBytes) {
      fail(ErrorKind::bad_file, "{}: header: tensor name of {} bytes, at most {} are allowed", file_,
           key_.size(), kMaxNameBytes);
    }
    if (header_.tensors.size() == kMaxTensors) {
      fail(ErrorKind::bad_file, "{}: header: more than {} tensors", file_, kMaxTensors);
    }
    tensor_ = SafetensorsRecord{};
    tensor_.name = key_;
    has_dtype_ = has_shape_ = false;
    num_offsets_ = 0;
    state_ = State::tensor;
  }

  void finish_tensor() {
    if (!has_dtype_) refuse("dtype", "missing");
    if (!has_shape_) refuse("shape", "missing");
    if (num_offsets_ != 2) refuse("data_offsets", "found {} numbers, expected 2", num_offsets_);
    header_.tensors.push_back(std::move(tensor_));
  }

  SafetensorsHeader& header_;
  const std::string& file_;
  State state_ = State::start;
  std::size_t depth_ = 0;
  std::size_t skip_depth_ = 0;
  std::string key_;
  SafetensorsRecord tensor_;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  int num_offsets_ = 0;
};

// What must be known before the JSON library sees the text: it takes a zero byte for the end and would not
// look at what follows, and it copies each string whole before it hands it over.
void check_text(std::string_view text, const std::string& file) {
  std::size_t string_start = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\0') fail(ErrorKind::bad_file, "{}: offset {}: header: invalid JSON: a zero byte", file, i + 8);
    if (c == '"') {
      in_string = !in_string;
      string_start = i;
    } else if (in_string && c == '\\') {
      ++i;
    }
    if (in_string && i - string_start > kMaxStringBytes) {
      fail(ErrorKind::bad_file, "{}: offset {}: header: a string of more than {} bytes", file,
           string_start + 8, kMaxStringBytes);
    }
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view text, const std::string& file) {
  check_text(text, file);
  SafetensorsHeader header;
  HeaderReader reader(header, file);
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  return header;
}

}  // namespace heirloom
