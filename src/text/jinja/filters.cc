#include "text/jinja/filters.h"

#include "text/jinja/filter_tables.h"

namespace heirloom::text::jinja {

FilterFunction find_filter(std::string_view name) {
  for (const FilterTable* table : {&text_filters(), &sequence_filters()}) {
    if (const auto it = table->find(name); it != table->end()) return it->second;
  }
  return nullptr;
}

}  // namespace heirloom::text::jinja
