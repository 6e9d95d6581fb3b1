"""The state machine of a wait: readings with times in, events and a next deadline out. Pure.

How a reading flows::

    Observation ──> machine.StartupMachine      when: deadlines, limits, how the wait ends
                      │  limits.Limits          which limit fires, and what is suspected then
                      v
                    bringup.Bringup             what: one handler a kind of reading
                      │  chronicle.Chronicle    splits the log's lines into attempts
                      │  notices.Notices        warnings, each once, and broken probes
                      │  callers_rules          what rules of the caller's find
                      │  history.HistoryClock   dates lines that were there before the watch
                      v
                    attempt.Attempt             one start of the server
                         told.Told              what its text says; the diagnosis of its cause
                         engines.Engines        which phase each engine is in, by its own lines
                         signs.Signs            weak evidence: processes, memory, the port
                         memory.GpuTrack        GPU memory: baseline, rise, stillness, fall
                         activity.Activity      what moves: the clock that tells slow from stuck
                         readiness.Readiness    which tiers were met, and whether they held
                         ending.Ending          deaths, last lines, and the first cause
                         course.Course          the phases that were entered, over `transitions`

`reporting` turns all of that into a report or a status; `terms.Terms` is what was asked for;
`earlier` compares with an earlier start.
"""
