"""The manifests that launch/gke.sh gives to kubectl, field by field.

The tables below say what the published APIs allow, for every field that the manifests
use, looked up in:

* JobSet v0.12.0, config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml, v1alpha2,
  which includes batch/v1 JobSpec and v1 PodSpec of k8s.io/api v0.36.0;
* the Cloud Storage FUSE CSI driver of GKE, for volumeAttributes.
"""

import re

import pytest
import yaml

from tests.launch.test_gke import FLAGS, IMAGE, SCRIPT

STRING_MAP = {str: str}
# Names of rules, by jobset_types.go and its webhook.
RULE_NAME = re.compile("[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
POD_SPEC = {
    "serviceAccountName": str,
    "restartPolicy": {"Always", "Never", "OnFailure"},
    "terminationGracePeriodSeconds": int,
    "nodeSelector": STRING_MAP,
    "tolerations": [
        {
            "key": str,
            "operator": {"Exists", "Equal", "Lt", "Gt"},
            "value": str,
            "effect": {"NoSchedule", "PreferNoSchedule", "NoExecute"},
        }
    ],
    "containers": [
        {
            "name": str,
            "image": str,
            "command": [str],
            "args": [str],
            "ports": [{"containerPort": int}],
            "securityContext": {
                "allowPrivilegeEscalation": bool,
                "capabilities": {"add": [str]},
            },
            "resources": {"requests": {str: int}, "limits": {str: int}},
            "volumeMounts": [{"name": str, "mountPath": str}],
        }
    ],
    "volumes": [
        {
            "name": str,
            "csi": {
                "driver": str,
                "volumeAttributes": {"bucketName": str, "mountOptions": str},
            },
        }
    ],
}
METADATA = {
    "name": str,
    "namespace": str,
    "labels": STRING_MAP,
    "annotations": STRING_MAP,
}
JOB_SPEC = {
    "completions": int,
    "parallelism": int,
    "completionMode": {"NonIndexed", "Indexed"},
    "backoffLimit": int,
    "podFailurePolicy": {
        "rules": [
            {
                "action": {"Count", "FailIndex", "FailJob", "Ignore"},
                "onPodConditions": [
                    {"type": str, "status": {"True", "False", "Unknown"}}
                ],
                "onExitCodes": {
                    "containerName": str,
                    "operator": {"In", "NotIn"},
                    "values": [int],
                },
            }
        ]
    },
    "template": {"metadata": METADATA, "spec": POD_SPEC},
}
JOB = {
    "apiVersion": {"batch/v1"},
    "kind": {"Job"},
    "metadata": METADATA,
    "spec": JOB_SPEC,
}
JOBSET = {
    "apiVersion": {"jobset.x-k8s.io/v1alpha2"},
    "kind": {"JobSet"},
    "metadata": METADATA,
    "spec": {
        "network": {
            "enableDNSHostnames": bool,
            "publishNotReadyAddresses": bool,
            "subdomain": str,
        },
        "failurePolicy": {
            "maxRestarts": int,
            "restartStrategy": {"Recreate", "BlockingRecreate", "InPlaceRestart"},
            "rules": [
                {
                    "name": RULE_NAME,
                    "action": {
                        "FailJobSet",
                        "RestartJobSet",
                        "RestartJobSetAndIgnoreMaxRestarts",
                        "RestartJob",
                        "RestartJobAndIgnoreMaxRestarts",
                    },
                    "onJobFailureReasons": [
                        {
                            "BackoffLimitExceeded",
                            "DeadlineExceeded",
                            "FailedIndexes",
                            "MaxFailedIndexesExceeded",
                            "PodFailurePolicy",
                        }
                    ],
                    "targetReplicatedJobs": [str],
                }
            ],
        },
        "replicatedJobs": [
            {
                "name": str,
                "replicas": int,
                "template": {"metadata": METADATA, "spec": JOB_SPEC},
            }
        ],
    },
}
# Required by the same schemas, where the path ends so.
REQUIRED = {
    "rules[].onExitCodes": {"operator", "values"},
    "onPodConditions[]": {"type"},
    "failurePolicy.rules[]": {"name", "action"},
    "podFailurePolicy.rules[]": {"action"},
    "replicatedJobs[]": {"name", "template"},
    "containers[]": {"name"},
    "volumeMounts[]": {"name", "mountPath"},
    "volumes[]": {"name"},
    "csi": {"driver"},
}


def compare(value, allowed, path=""):
    """Fails where a manifest has what the published API has not."""
    if isinstance(allowed, type):
        assert type(value) is allowed, f"{path} is {value!r}, not {allowed}"
    elif isinstance(allowed, re.Pattern):
        assert allowed.fullmatch(value), f"{path} is {value!r}"
    elif isinstance(allowed, set):
        assert value in allowed, f"{path} is {value!r}"
    elif isinstance(allowed, list):
        assert type(value) is list and value, path
        for item in value:
            compare(item, allowed[0], path + "[]")
    elif next(iter(allowed)) is str:
        for key, item in value.items():
            assert type(key) is str, path
            compare(item, allowed[str], f"{path}.{key}")
    else:
        assert type(value) is dict, path
        for key, item in value.items():
            assert key in allowed, f"{path}.{key} is not published"
            compare(item, allowed[key], f"{path}.{key}")
        for end, keys in REQUIRED.items():
            if path.endswith(end):
                assert keys <= value.keys(), f"{path} lacks {keys - value.keys()}"


@pytest.fixture
def manifests(cloud):
    """Returns a function that renders both manifests."""
    cloud.reply("git .*rev-parse", "0123456789ab")

    def render(*args, words=()):
        for command in ("train", "prepare"):
            cloud.run(SCRIPT, command, *FLAGS, *args, "--dry_run", "--", *words)
        directory = cloud.clone / "runs" / "launch"
        return [
            yaml.safe_load((directory / f"bert-base.{name}.yaml").read_text())
            for name in ("jobset", "prepare_job")
        ]

    return render


def job_of(jobset):
    (replicated,) = jobset["spec"]["replicatedJobs"]
    return replicated["template"]["spec"]


def pod_of(jobset):
    return job_of(jobset)["template"]["spec"]


def test_every_field_is_published_and_of_its_type(manifests):
    jobset, job = manifests()
    compare(jobset, JOBSET)
    compare(job, JOB)


@pytest.mark.parametrize(
    "key, value",
    [
        ("restartPolicy", "Sometimes"),
        ("nodeSelectors", {}),
        ("terminationGracePeriodSeconds", "120"),
        ("nodeSelector", {"a": 1}),
        ("volumes", [{"csi": {"driver": "x"}}]),
    ],
)
def test_the_comparison_can_fail(manifests, key, value):
    jobset, _ = manifests()
    pod_of(jobset)[key] = value
    with pytest.raises(AssertionError):
        compare(jobset, JOBSET)


@pytest.mark.parametrize(
    "kind, topology, hosts, chips, accelerator",
    [
        ("ct6e-standard-4t", "4x4", 4, 4, "tpu-v6e-slice"),
        ("ct5lp-hightpu-4t", "4x8", 8, 4, "tpu-v5-lite-podslice"),
        ("ct5lp-hightpu-8t", "2x4", 1, 8, "tpu-v5-lite-podslice"),
        ("ct5p-hightpu-4t", "2x2x4", 4, 4, "tpu-v5p-slice"),
        ("ct4p-hightpu-4t", "2x2x1", 1, 4, "tpu-v4-podslice"),
        ("tpu7x-standard-4t", "2x2x2", 2, 4, "tpu7x"),
    ],
)
def test_the_slice(manifests, kind, topology, hosts, chips, accelerator):
    jobset, _ = manifests(f"--type={kind}", f"--topology={topology}")
    job, pod = job_of(jobset), pod_of(jobset)
    assert (job["completions"], job["parallelism"]) == (hosts, hosts)
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": accelerator,
        "cloud.google.com/gke-tpu-topology": topology,
        "bert_jax_run": "bert-base",
    }
    tpu = {"google.com/tpu": chips}
    assert pod["containers"][0]["resources"] == {"requests": tpu, "limits": tpu}


def test_names_that_yaml_reads_as_something_else_stay_names(manifests):
    for jobset in manifests("--bucket=12345", "--namespace=yes"):
        assert jobset["metadata"]["namespace"] == "yes"
        compare(jobset, JOBSET if jobset["kind"] == "JobSet" else JOB)


def outcome(jobset, code=None, condition=None):
    """Returns what JobSet does when a pod ends so, by the published order of rules."""
    job = job_of(jobset)
    assert job["backoffLimit"] == 0 and pod_of(jobset)["restartPolicy"] == "Never"
    reason = "BackoffLimitExceeded"
    for rule in job["podFailurePolicy"]["rules"]:
        exit_codes = rule.get("onExitCodes")
        conditions = [c["type"] for c in rule.get("onPodConditions", [])]
        listed = exit_codes and code in exit_codes["values"]
        by_code = exit_codes and listed == (exit_codes["operator"] == "In")
        if condition in conditions or (code and by_code):
            if rule["action"] == "FailJob":
                reason = "PodFailurePolicy"
            break
    for rule in jobset["spec"]["failurePolicy"]["rules"]:
        if reason in rule.get("onJobFailureReasons", [reason]):
            return rule["action"]


@pytest.mark.parametrize("code", [75, 76])
def test_codes_75_and_76_restart_all_hosts(manifests, code):
    assert outcome(manifests()[0], code) == "RestartJobSet"


@pytest.mark.parametrize("code", [1, 2, 77, 78, 137, 139])
def test_other_codes_fail(manifests, code):
    assert outcome(manifests()[0], code) == "FailJobSet"


@pytest.mark.parametrize("code", [137, 143, 75])
def test_a_preempted_host_restarts_whatever_its_code(manifests, code):
    assert outcome(manifests()[0], code, "DisruptionTarget") == "RestartJobSet"


def test_hosts_find_each_other_save_and_see_the_bucket(manifests):
    jobset, _ = manifests("--max_restarts=7")
    spec, pod = jobset["spec"], pod_of(jobset)
    assert spec["network"] == {"enableDNSHostnames": True, "subdomain": "bert-base"}
    assert spec["failurePolicy"]["maxRestarts"] == 7
    assert pod["terminationGracePeriodSeconds"] == 120
    assert pod["serviceAccountName"] == "bert-jax"
    container = pod["containers"][0]
    assert container["image"] == IMAGE
    (mount,) = container["volumeMounts"]
    (volume,) = pod["volumes"]
    assert mount == {"name": volume["name"], "mountPath": "/mnt/bert_jax"}
    assert volume["csi"]["volumeAttributes"]["bucketName"] == "my-bucket"
    annotations = job_of(jobset)["template"]["metadata"]["annotations"]
    assert annotations["gke-gcsfuse/volumes"] == "true"
    names = {container["name"] for container in pod["containers"]}
    rules = job_of(jobset)["podFailurePolicy"]["rules"]
    asked = {r["onExitCodes"]["containerName"] for r in rules if "onExitCodes" in r}
    assert asked == names == {"train"}


def test_arguments_arrive_as_they_were_given(manifests):
    words = [
        "--config.data.sources=('text:/a \"b\\n/*.txt',)",
        "--config.x=@NAME@: #{y}&",
    ]
    jobset, job = manifests(words=words)
    shared = [
        "--config=configs/base.py",
        "--config.data.corpus_dir=/mnt/bert_jax/corpora/base",
        *words,
    ]
    assert pod_of(jobset)["containers"][0]["args"] == [
        "--workdir=/mnt/bert_jax/runs/bert-base",
        *shared,
    ]
    assert job["spec"]["template"]["spec"]["containers"][0]["args"] == shared


def test_the_corpus_is_made_without_a_tpu(manifests):
    spec = manifests()[1]["spec"]["template"]["spec"]
    assert "nodeSelector" not in spec
    assert "resources" not in spec["containers"][0]
