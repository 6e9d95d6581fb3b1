'''Time, probes and whole bring-ups for tests: no server, no GPU, no waiting.

A deployment script takes the call that waits as an argument::

    # deploy.py
    import vllm_startup
    from vllm_startup import StartupError, StartupTimeout, Timeouts


    async def deploy(service, *, wait=vllm_startup.wait_until_ready, attempts=3):
        """Start the service; try again where that may help; go back to the old version where not."""
        for attempt in range(1, attempts + 1):
            pid = service.start()
            try:
                return await wait(service.url, pid=pid, timeouts=Timeouts(1800))
            except StartupTimeout:
                break
            except StartupError as error:
                if not error.cause.retryable or attempt == attempts:
                    break
        service.roll_back()
        return None

and its test hands it a `ScriptedWait`, which runs the real watch over scripted evidence, on a
clock that jumps::

    # test_deploy.py
    from vllm_startup import causes
    from vllm_startup.testing import ScriptedWait, failed_after, hung_after, ready_after

    BUSY = causes.GpuMemoryNotFree(message="the old server still holds the GPU", retryable=True)


    async def test_tries_again_when_the_gpu_is_still_held():
        service = FakeService()
        wait = ScriptedWait(failed_after(20, BUSY), ready_after(95))
        report = await deploy(service, wait=wait)
        assert service.starts == 2
        assert report.ready_s == 95


    async def test_rolls_back_when_the_server_hangs():
        service = FakeService()
        assert await deploy(service, wait=ScriptedWait(hung_after(60))) is None
        assert service.rolled_back

Half an hour of waiting passes in a few milliseconds. With pytest, the fixtures
``vllm_startup_clock``, ``vllm_startup_probe``, ``vllm_startup_wait`` and ``vllm_startup_replay``
are there without an import.

`simulated_server` gives the command of a server that needs no vLLM and no GPU but is real: a tree of
processes, a port, vLLM's output. Use it to try the library, and where a test starts the server::

    async with vllm_startup.launch(simulated_server("ready", speed=5)) as server:
        report = await server.wait_until_ready()

For a probe or a rule of your own, script the other probes and watch::

    async with Startup([MyProbe(), *ready_after(60).probes()], clock=FakeClock()) as startup:
        report = await startup.wait_until_ready()
'''

from vllm_startup._demo.command import simulated_server
from vllm_startup._readings import Observation
from vllm_startup.testing._clock import ClockStuckError, FakeClock
from vllm_startup.testing._probes import HungProbe, Script, ScriptedProbe
from vllm_startup.testing._replay import replay
from vllm_startup.testing._scenarios import Scenario, failed_after, hung_after, killed_after, ready_after
from vllm_startup.testing._wait import ScriptedWait

__all__ = [
    "ClockStuckError",
    "FakeClock",
    "HungProbe",
    "Observation",
    "Scenario",
    "Script",
    "ScriptedProbe",
    "ScriptedWait",
    "failed_after",
    "hung_after",
    "killed_after",
    "ready_after",
    "replay",
    "simulated_server",
]
