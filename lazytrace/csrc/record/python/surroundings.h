// What a step stands in: who records, what is known of the objects around it, what was written so far.
#pragma once

namespace lazytrace {

class Exchange;
class Pause;
class Provenance;
class Recorder;
class Writes;

// Borrowed from the observer.
struct Surroundings {
  Recorder* recorder;
  Provenance* provenance;
  Writes* writes;
  Pause* pause;
  Exchange* exchange;
};

}  // namespace lazytrace
