// The filters and tests of the template language, by name.
#pragma once

#include <string_view>

#include "text/jinja/value.h"

namespace heirloom::text::jinja {

using FilterFunction = Value (*)(Interpreter& in, const Value& input, Arguments& arguments);
using TestFunction = bool (*)(Interpreter& in, const Value& input, Arguments& arguments);

/// nullptr for a name the language does not have.
FilterFunction find_filter(std::string_view name);
TestFunction find_test(std::string_view name);

}  // namespace heirloom::text::jinja
