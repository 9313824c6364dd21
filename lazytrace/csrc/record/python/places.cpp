#include "record/python/places.h"

namespace lazytrace {

void Places::note(PyObject* code, int lasti, bool installed, Place* place) {
  if (installed && own_) return;
  own_ |= !installed;
  if (last_code_ != code) {
    last_code_ = code;
    codes_.push_back(py::reinterpret_borrow<py::object>(code));
  }
  *place = Place{code, lasti};
}

}  // namespace lazytrace
