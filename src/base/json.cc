#include "base/json.h"

#include "base/check.h"

namespace heirloom {

OrderedJson parse_json(std::string_view text, std::string_view source, ErrorKind kind, int max_depth) {
  const auto bound_depth = [&](int depth, OrderedJson::parse_event_t event, OrderedJson&) {
    using Event = OrderedJson::parse_event_t;
    if ((event == Event::object_start || event == Event::array_start) && depth >= max_depth) {
      fail(kind, "{}: JSON nested deeper than {} levels", source, max_depth);
    }
    return true;
  };
  try {
    return OrderedJson::parse(text.begin(), text.end(), bound_depth);
  } catch (const OrderedJson::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error ..."
    std::string_view what = error.what();
    if (const std::size_t bracket = what.find("] "); bracket != std::string_view::npos) what.remove_prefix(bracket + 2);
    fail(kind, "{}: not valid JSON: {}", source, what);
  }
}

}  // namespace heirloom
