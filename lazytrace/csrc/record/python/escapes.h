// Which bindings of torch lead out of the dispatcher's sight: the rows of escapes.def.
#pragma once

#include <string>

namespace lazytrace {

bool escapes_from_tensor(const std::string& method);
bool escapes_from_torch(const std::string& function);

}  // namespace lazytrace
