"""A server that we start: it is ours to end, and nothing of it may be left.

How the parts hold together::

    launch.Launch                        `launch()`: one server, for as long as a block lasts
      │  server.Server                   what the block is given: waits, `detach`
      │  output.OutputTail               drains the pipe that it prints to
      │  gpu_release.GpuRelease          compares GPU memory after with GPU memory before
      v
    guarded.Guarded  <── socket ──>  guardian        the server's parent, a process of its own
      ^                                end_tree.end_tree     TERM, then KILL, until nothing lives
      │                                  left_files        what killed processes leave in $TMPDIR
    running.Running                      `run`: a command in our place, its signals and its end
         forwarding.Forwarder            its output, on the way to ours
         terminal.Terminal               its terminal, where ours is one

`guardian`, `end_tree` and `left_files` run in the guardian too, and import next to nothing.
"""
