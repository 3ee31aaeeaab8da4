"""Fields that the YAML files of launch/ may use, with their types or values.

Copied from the schemas of JobSet v0.12.0 (v1alpha2, with batch/v1 JobSpec and v1
PodSpec) and SkyPilot 0.14.1. Items of a list have the list's path; * is any key.
"""

PODS = {
    "serviceAccountName": str,
    "restartPolicy": {"Never", "OnFailure"},
    "terminationGracePeriodSeconds": int,
    "nodeSelector.*": str,
    "tolerations.key": str,
    "tolerations.operator": {"Exists", "Equal"},
    "tolerations.effect": {"NoSchedule", "NoExecute"},
    "containers.name": str,
    "containers.image": str,
    "containers.command": str,
    "containers.args": str,
    "containers.ports.containerPort": int,
    "containers.securityContext.capabilities.add": str,
    "containers.resources.limits.*": int,
    "containers.volumeMounts.name": str,
    "containers.volumeMounts.mountPath": str,
    "volumes.name": str,
    "volumes.csi.driver": str,
    "volumes.csi.volumeAttributes.*": str,
}
JOBS = {
    "completions": int,
    "parallelism": int,
    "completionMode": {"NonIndexed", "Indexed"},
    "backoffLimit": int,
    "podFailurePolicy.rules.action": {"Count", "FailIndex", "FailJob", "Ignore"},
    "podFailurePolicy.rules.onPodConditions.type": str,
    "podFailurePolicy.rules.onPodConditions.status": {"True", "False", "Unknown"},
    "podFailurePolicy.rules.onExitCodes.containerName": str,
    "podFailurePolicy.rules.onExitCodes.operator": {"In", "NotIn"},
    "podFailurePolicy.rules.onExitCodes.values": int,
    "template.metadata.annotations.*": str,
} | {f"template.spec.{path}": kind for path, kind in PODS.items()}
JOBSET = {
    "apiVersion": {"jobset.x-k8s.io/v1alpha2"},
    "kind": {"JobSet"},
    "metadata.name": str,
    "metadata.annotations.*": str,
    "spec.failurePolicy.maxRestarts": int,
    "spec.failurePolicy.restartStrategy": {"Recreate", "BlockingRecreate"},
    "spec.failurePolicy.rules.name": str,
    "spec.failurePolicy.rules.action": {"FailJobSet", "RestartJobSet", "RestartJob"},
    "spec.failurePolicy.rules.onJobFailureReasons": {"PodFailurePolicy"},
    "spec.replicatedJobs.name": str,
    "spec.replicatedJobs.replicas": int,
} | {f"spec.replicatedJobs.template.spec.{path}": kind for path, kind in JOBS.items()}
SKYPILOT = {
    "workdir": str,
    "resources.infra": str,
    "resources.accelerators": str,
    "resources.use_spot": bool,
    "resources.job_recovery.strategy": {"FAILOVER", "EAGER_NEXT_REGION"},
    "resources.job_recovery.max_restarts_on_errors": int,
    "resources.job_recovery.recover_on_exit_codes": int,
    "envs.*": str | None,
    "setup": str,
    "run": str,
}


def check(value, fields: dict, path: str = "") -> None:
    """Raises AssertionError for a field or value that is not in `fields`."""
    if isinstance(value, dict):
        for key, item in value.items():
            any_key = f"{path}*" in fields
            check(item, fields, f"{path}*" if any_key else f"{path}{key}.")
    elif isinstance(value, list):
        for item in value:
            check(item, fields, path)
    else:
        path = path.removesuffix(".")
        assert path in fields, f"{path} is not a field"
        kind = fields[path]
        found = value in kind if isinstance(kind, set) else isinstance(value, kind)
        assert found, f"{path}={value!r} is not of {kind}"
