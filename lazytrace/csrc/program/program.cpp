#include "program/program.h"

#include "cpython/objects.h"

namespace lazytrace {

py::tuple place_tuple(const Place& place) {
  if (!place.code) return py::make_tuple("", 0, "");
  auto* code = reinterpret_cast<PyCodeObject*>(place.code);
  return py::make_tuple(text_of(code->co_filename), PyCode_Addr2Line(code, place.lasti),
                        text_of(code->co_name));
}

}  // namespace lazytrace
