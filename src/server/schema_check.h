// JSON schemas against what the grammar compiler can enforce. A keyword that it would ignore changes what the client gets
// without telling it, so such schemas are refused with the keyword's path.
#pragma once

#include <string>

#include "heirloom/engine.h"

namespace heirloom::server {

/// `schema` ready for the compiler: the same meaning, with patterns in the spelling that it reads. Throws ApiError(400) naming
/// the path below `path` of the first thing that cannot be enforced.
Json checked_schema(const Json& schema, const std::string& path);

/// A regular expression (ECMAScript) in the compiler's spelling. Throws ApiError(400) that names the construct.
std::string checked_regex(const std::string& pattern, const std::string& path);

}  // namespace heirloom::server
