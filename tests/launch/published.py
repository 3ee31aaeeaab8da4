"""What the tools that launchers call take: commands, and the flags of each that we use.

Looked up in the tools themselves, "flag=" where it takes a value:

* gcloud 528.0.0, the table of its own completion (data/cli/gcloud_completions.py);
* kubectl and docker, the references of their commands;
* SkyPilot 0.14.1 (sky/client/cli) and xpk 1.16.0 (xpk/parser), their sources;
* Slurm 26.05, the manual pages of sbatch, squeue, sacct and scancel.

A call that is not in the table fails the test that made it: a new flag is looked up
first.
"""

# Of every command of the tool.
EVERYWHERE = {
    "gcloud": "format= project= quiet",
    "kubectl": "context= namespace=",
}

FLAGS = {
    "gcloud artifacts repositories add-iam-policy-binding": "location= member= role=",
    "gcloud artifacts repositories create": "location= repository-format=",
    "gcloud artifacts repositories describe": "location=",
    "gcloud auth configure-docker": "",
    "gcloud compute instance-groups managed create": (
        "default-action-on-vm-failure= size= template= workload-policy= zone="
    ),
    "gcloud compute instance-groups managed delete": "zone=",
    "gcloud compute instance-groups managed list-instances": "zone=",
    "gcloud compute instance-templates create": (
        "boot-disk-size= image-family= image-project= "
        "instance-termination-action= labels= machine-type= maintenance-policy= "
        "metadata= network= no-address provisioning-model= reservation-affinity= "
        "reservation= scopes= service-account= shielded-secure-boot subnet="
    ),
    "gcloud compute instance-templates delete": "",
    "gcloud compute resource-policies create workload-policy": (
        "accelerator-topology= region= type="
    ),
    "gcloud compute resource-policies delete": "region=",
    "gcloud compute resource-policies describe": "region=",
    "gcloud compute scp": "tunnel-through-iap zone=",
    "gcloud compute ssh": "command= tunnel-through-iap zone=",
    "gcloud compute tpus queued-resources create": (
        "accelerator-type= internal-ips labels= network= node-count= node-id= "
        "node-prefix= reserved runtime-version= scopes= service-account= "
        "shielded-secure-boot spot subnetwork= valid-until-duration= zone="
    ),
    "gcloud compute tpus queued-resources delete": "force zone=",
    "gcloud compute tpus queued-resources describe": "zone=",
    "gcloud compute tpus queued-resources scp": (
        "node= tunnel-through-iap worker= zone="
    ),
    "gcloud compute tpus queued-resources ssh": (
        "command= node= tunnel-through-iap worker= zone="
    ),
    "gcloud compute tpus tpu-vm describe": "zone=",
    "gcloud container clusters create": (
        "addons= enable-dns-access enable-ip-alias enable-private-nodes "
        "enable-shielded-nodes location= machine-type= no-enable-ip-access "
        "node-locations= num-nodes= release-channel= service-account= "
        "shielded-secure-boot workload-pool="
    ),
    "gcloud container clusters delete": "location=",
    "gcloud container clusters get-credentials": "dns-endpoint location=",
    "gcloud container clusters list": "filter= location=",
    "gcloud container node-pools create": (
        "cluster= enable-private-nodes location= machine-type= node-labels= "
        "node-locations= num-nodes= placement-policy= service-account= "
        "shielded-secure-boot spot tpu-topology= workload-metadata="
    ),
    "gcloud container node-pools delete": "cluster= location=",
    "gcloud container node-pools describe": "cluster= location=",
    "gcloud container node-pools list": "cluster= filter= location=",
    "gcloud iam service-accounts add-iam-policy-binding": "condition= member= role=",
    "gcloud iam service-accounts create": "display-name=",
    "gcloud iam service-accounts describe": "",
    "gcloud projects add-iam-policy-binding": "condition= member= role=",
    "gcloud storage buckets add-iam-policy-binding": "member= role=",
    "gcloud storage buckets create": (
        "enable-hierarchical-namespace location= public-access-prevention "
        "uniform-bucket-level-access"
    ),
    "gcloud storage buckets describe": "raw",
    "gcloud storage ls": "",
    "gcloud storage rsync": "exclude= recursive",
    "docker build": "file= platform= tag=",
    "docker push": "",
    "kubectl annotate serviceaccount": "overwrite",
    "kubectl apply": "filename= server-side",
    "kubectl create": "filename=",
    "kubectl create namespace": "",
    "kubectl create serviceaccount": "",
    "kubectl delete job": "ignore-not-found",
    "kubectl delete jobset": "ignore-not-found",
    "kubectl get events": "field-selector= output=",
    "kubectl get job": "output=",
    "kubectl get jobset": "output=",
    "kubectl get namespace": "output=",
    "kubectl get pods": "output= selector=",
    "kubectl get serviceaccount": "output=",
    "kubectl logs": (
        "all-containers container= follow ignore-errors prefix selector= tail="
    ),
    "kubectl patch jobset": "patch= type=",
    "kubectl rollout status": "timeout=",
    "sacct": "allocations format= jobs= noheader parsable2",
    "sbatch": (
        "account= chdir= cpus-per-task= export= gpus-per-node= job-name= nodes= "
        "ntasks-per-node= ntasks= output= parsable partition= time= wait wrap="
    ),
    "scancel": "batch signal=",
    "sky jobs cancel": "name= yes",
    "sky jobs launch": (
        "config= detach-run env= gpus= infra= name= no-use-spot use-spot workdir= yes"
    ),
    "sky jobs logs": "follow name= no-follow",
    "sky jobs queue": "all output= refresh skip-finished",
    "squeue": "format= me name= noheader sort=",
    "xpk storage attach": (
        "auto-mount= bucket= cluster= mount-options= mount-point= project= readonly= "
        "size= type= zone="
    ),
    "xpk workload create": (
        "cluster= command= docker-image= max-restarts= num-slices= project= "
        "restart-on-exit-codes= spot storage= termination-grace-period-seconds= "
        "tpu-type= workload= zone="
    ),
}


def check(words: list[str]) -> None:
    """Fails where a call is not one that its tool takes."""
    tool = words[0]
    if not any(command.split()[0] == tool for command in FLAGS):
        return  # of every machine: git, tar, sudo
    command = next(
        (
            " ".join(words[:length])
            for length in range(len(words), 0, -1)
            if " ".join(words[:length]) in FLAGS
        ),
        None,
    )
    start = len(command.split()) if command else 0
    if tool == "kubectl":  # its flags may stand before the command
        command = _kubectl_command(words)
        start = 1
    assert command in FLAGS, f"not looked up: {words}"
    taken = (FLAGS[command] + " " + EVERYWHERE.get(tool, "")).split()
    for word in words[start:]:
        if tool == "sbatch" and not word.startswith("-"):
            return  # the script: what follows is its own
        if not word.startswith("-"):
            continue
        name, equals, _ = word.removeprefix("--").partition("=")
        assert name + equals in taken, f"{command} has no --{name}{equals}: {words}"


def _kubectl_command(words: list[str]) -> str:
    plain = [word for word in words if not word.startswith("-")]
    longest = " ".join(plain[:3])
    return longest if longest in FLAGS else " ".join(plain[:2])
