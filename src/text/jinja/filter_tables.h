// The two halves of the filter table.
#pragma once

#include <string_view>
#include <unordered_map>

#include "text/jinja/filters.h"

namespace heirloom::text::jinja {

using FilterTable = std::unordered_map<std::string_view, FilterFunction>;

const FilterTable& text_filters();      // strings, numbers, JSON
const FilterTable& sequence_filters();  // lists and mappings

}  // namespace heirloom::text::jinja
