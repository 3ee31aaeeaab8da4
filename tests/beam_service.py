"""Serves Beam jobs and a pool of worker processes, on ports that it prints as JSON.

The runner behind Beam's own job service, `local_job_service`, has one worker; this one
has --direct_num_workers. Workers are started as by `worker_pool_main`.
"""

import json
import signal
import sys

from apache_beam.options.pipeline_options import DirectOptions
from apache_beam.portability.api import beam_job_api_pb2
from apache_beam.runners.portability import local_job_service
from apache_beam.runners.portability.fn_api_runner import fn_runner
from apache_beam.runners.worker import worker_pool_main


class Job(local_job_service.BeamJob):
    def _invoke_runner(self):
        self.set_state(beam_job_api_pb2.JobState.RUNNING)
        options = self.pipeline_options()
        runner = fn_runner.FnApiRunner(provision_info=self._provision_info)
        runner._num_workers = int(options.view_as(DirectOptions).direct_num_workers)
        return runner.run_via_runner_api(self._pipeline_proto, options)


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # it stops the workers
    pool = worker_pool_main.BeamFnExternalWorkerPoolServicer.start(use_process=True)
    jobs = local_job_service.LocalJobServicer(beam_job_type=Job)
    port = jobs.start_grpc_server()
    print(json.dumps({"jobs": f"localhost:{port}", "workers": pool[0]}), flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
