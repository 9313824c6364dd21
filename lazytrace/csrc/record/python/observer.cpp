#include "record/python/observer.h"

namespace lazytrace {

Observer::Observer(Recorder* recorder, GuardTree* tree)
    : exchange_(recorder),
      gradients_(recorder),
      whole_calls_(recorder),
      unseen_(recorder, &provenance_),
      provenance_(recorder, tree),
      around_{recorder, &provenance_, &log_, &pause_, &exchange_},
      new_objects_(&provenance_),
      asides_(recorder, &provenance_, &pause_),
      classes_(recorder, &provenance_),
      lists_(recorder, tree, &provenance_, &exchange_),
      late_(&around_),
      drawn_(&around_, &lists_),
      cached_(&around_),
      containers_(recorder, tree, &provenance_, &log_, &classes_, &lists_, &late_),
      default_dicts_(recorder, &provenance_, &containers_),
      attributes_(recorder, tree, &provenance_, &log_, &classes_, &containers_, &late_, &gradients_,
                  &unseen_),
      names_(recorder, tree, &provenance_, &log_),
      consumption_(recorder, tree, &exchange_, &provenance_, &log_, &classes_, &containers_, &attributes_),
      functions_(tree, &provenance_, &log_, &names_, &consumption_),
      pure_functions_(&provenance_, &log_, &classes_, &attributes_, &names_, &functions_),
      writes_(recorder, tree, &exchange_, &provenance_, &log_, &classes_, &lists_, &containers_, &names_,
              &consumption_, &gradients_),
      protocols_(recorder, &provenance_, &classes_, &containers_, &consumption_, &writes_),
      context_variables_(recorder, &provenance_),
      warnings_(recorder, &provenance_, &attributes_, &consumption_),
      calls_(recorder, tree, &provenance_, &new_objects_, &asides_, &classes_, &containers_, &attributes_,
             &consumption_, &writes_, &protocols_, &context_variables_, &warnings_),
      instructions_(recorder, &provenance_, &new_objects_, &classes_, &containers_, &names_, &consumption_,
                    &writes_, &protocols_, &calls_),
      modules_(recorder, &whole_calls_, &containers_, &names_, &functions_, &protocols_, &calls_,
               &instructions_),
      watcher_(around_, &gradients_, &whole_calls_, &unseen_, &lists_, &drawn_, &cached_, &default_dicts_,
               &asides_, &new_objects_, &classes_, &containers_, &consumption_, &functions_, &protocols_,
               &instructions_, &modules_, Unwinding(&names_, &attributes_, &context_variables_)) {}

void Observer::finish(PyObject* result) {
  context_variables_.finish();
  watcher_.read_depth();
  provenance_.finish(result);
}

}  // namespace lazytrace
