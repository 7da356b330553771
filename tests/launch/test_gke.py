import pytest

yaml = pytest.importorskip("yaml")
VALUES = {"NAME": "chest-1", "IMAGE": "europe-docker.pkg.dev/mine/stepcot/train:1.0", "CLAIM": "stepcot"}
VALUES |= {"CONFIG": "configs/paper.py", "WORKDIR": "/mnt/stepcot/runs/paper", "NUM_HOSTS": "4", "CHIPS_PER_HOST": "4"}
VALUES |= {"ACCELERATOR": "tpu-v5-lite-podslice", "TOPOLOGY": "4x4"}
SHM = "/dev/shm"  # noqa: S108 (a path in the pod)
FLAG = r'--config.prompts.template=a "b" \ & {question} $(HOME): [c] #'


def read(out):
    """The document between the first line and the last, as kubectl would read it."""
    first, *document, last = out.splitlines()
    assert (first, last) == ("kubectl apply -f - <<'EOF'", "EOF")
    return yaml.safe_load("\n".join(document))


def test_the_jobset_holds_the_run(run):
    code, out, _ = run("gke.sh", "--dry-run", "start", FLAG, **VALUES, MAX_RESTARTS="7")
    assert code == 0
    jobset = read(out)
    assert "${" not in out
    assert jobset["metadata"]["name"] == "chest-1"
    (replicated,) = jobset["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    assert (job["parallelism"], job["completions"], job["backoffLimit"], replicated["replicas"]) == (4, 4, 0, 1)
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert pod["terminationGracePeriodSeconds"] == 120
    chosen = {"accelerator": "tpu-v5-lite-podslice", "topology": "4x4"}
    assert pod["nodeSelector"] == {f"cloud.google.com/gke-tpu-{name}": value for name, value in chosen.items()}
    # Bad input ends the JobSet, and all else starts it again.
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob"
    assert rule["onExitCodes"] == {"containerName": "train", "operator": "In", "values": [2, 3]}
    rules = [{"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}]
    assert jobset["spec"]["failurePolicy"] == {"maxRestarts": 7, "rules": rules}
    (container,) = pod["containers"]
    assert container["name"] == "train"
    assert container["command"] == ["python", "-m", "stepcot_jax.main"]
    flags = ["--config=configs/paper.py", "--workdir=/mnt/stepcot/runs/paper", "--num_processes=4"]
    assert container["args"] == [*flags, FLAG.replace("$", "$$")]
    assert container["resources"] == {"requests": {"google.com/tpu": 4}, "limits": {"google.com/tpu": 4}}
    assert container["securityContext"] == {"privileged": True, "runAsUser": 0}
    shm, volume = pod["volumes"]
    assert shm == {"name": "shm", "emptyDir": {"medium": "Memory"}}
    assert volume["persistentVolumeClaim"]["claimName"] == "stepcot"
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"shm": SHM, volume["name"]: "/mnt/stepcot"}
    assert not {"serviceAccountName", "tolerations", "labels", "envFrom"} & {*pod, *jobset["metadata"], *container}


def test_a_cluster_is_asked_for_what_its_variables_say(run):
    """Labels and fields as in the documents of Kueue, GKE and Kubernetes."""
    more = {"QUEUE": "chest-queue", "SPOT": "1", "SERVICE_ACCOUNT": "trainer", "SECRET": "keys", "MEMORY": "100Gi"}
    more |= {"CACHE": "gs://bucket/compiled", "PRIVILEGED": "0", "WORKDIR": "gs://bucket/run", "CLAIM": ""}
    code, out, _ = run("gke.sh", "--dry-run", "start", "--config.a= # with SPOT", **VALUES | more)
    assert code == 0
    jobset = read(out)
    assert jobset["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "chest-queue"}
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "trainer"
    assert pod["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
    spot = {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
    assert pod["tolerations"] == [spot]
    assert [volume["name"] for volume in pod["volumes"]] == ["shm"]  # no claim
    (container,) = pod["containers"]
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == [SHM]
    assert "securityContext" not in container
    assert pod["securityContext"]["runAsUser"] == 1000
    assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert {"name": "JAX_COMPILATION_CACHE_DIR", "value": "gs://bucket/compiled"} in container["env"]
    assert container["resources"]["requests"]["memory"] == "100Gi"
    assert container["args"][-1] == "--config.a= # with SPOT"
    _, out, _ = run("gke.sh", "--dry-run", "start", **VALUES, RESERVATION="mine")
    pod = read(out)["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"]["cloud.google.com/reservation-name"] == "mine"


WRONG = [("IMAGE", "a\n  evil: true"), ("IMAGE", "a: b"), ("TOPOLOGY", "4"), ("NUM_HOSTS", "four")]
WRONG += [("WORKDIR", "/mnt/other/x"), ("CLAIM", "a b"), ("SECRET", "a}}, evil: true"), ("QUEUE", "a\n  b: c")]
WRONG += [("CACHE", "gs://b/c: d"), ("CACHE", "/mnt/other/x"), ("MEMORY", "much"), ("PRIVILEGED", "yes")]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_value_that_could_change_the_form_is_refused(run, name, value):
    code, out, err = run("gke.sh", "--dry-run", "start", **{**VALUES, name: value})
    assert (code, out) == (2, "")
    assert err.startswith(f"error: gke.sh: {name}: ")


def test_start_hands_the_jobset_to_kubectl(run, put, tmp_path):
    put("kubectl", f'echo "$@" >{tmp_path}/arguments; cat >{tmp_path}/document')
    code, out, _ = run("gke.sh", "start", **VALUES)
    assert (code, out) == (0, "")
    assert (tmp_path / "arguments").read_text() == "apply -f -\n"
    assert yaml.safe_load((tmp_path / "document").read_text())["metadata"]["namespace"] == "default"
