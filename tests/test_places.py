"""Places that last on Kubernetes, and those that do not."""

from __future__ import annotations

import copy

import pytest

from operator_parts import SPEC, Object, streamjoin
from streamjoin_operator.derived import derive
from streamjoin_operator.reasons import Reason

CLAIM = {"persistentVolumeClaim": "data", "size": "1Gi"}
DATA = {"name": "data", "mountPath": "/data"}


def mounting(kind: str) -> Object:
    """Parts of a spec that has both mount such a volume at /data."""

    def template(container: str) -> Object:
        return {
            "podTemplate": {"spec": {"volumes": [{"name": "data", kind: {}}], "containers": [{"name": container, "volumeMounts": [DATA]}]}}
        }

    return {"driver": template("driver"), "executor": template("executor")}


def reading(path: str) -> Object:
    streams = copy.deepcopy(SPEC["streams"])
    streams[1]["source"]["files"]["path"] = path
    return {"streams": streams}


def writing(path: str) -> Object:
    joins = copy.deepcopy(SPEC["joins"])
    joins[0]["output"]["sink"]["files"]["path"] = path
    return {"joins": joins}


@pytest.mark.parametrize(
    ("spec", "field", "value"),
    [
        ({"checkpoint": {"location": "/tmp/state"}}, "spec.checkpoint.location", "/tmp/state"),
        ({"checkpoint": {"location": "file:///tmp/state"}}, "spec.checkpoint.location", "file:///tmp/state"),
        (reading("payments"), "spec.streams[1].source.files.path", "payments"),
        (writing("/out"), "spec.joins[0].output.sink.files.path", "/out"),
        ({"deadLetter": {"location": "/dead"}}, "spec.deadLetter.location", "/dead"),
        ({"checkpoint": CLAIM, **writing("/var/lib/streamjoins/out")}, "spec.joins[0].output.sink.files.path", "/var/lib/streamjoins/out"),
        ({**writing("/data/out"), **mounting("emptyDir")}, "spec.joins[0].output.sink.files.path", "/data/out"),
        ({**writing("/data/out"), **mounting("configMap")}, "spec.joins[0].output.sink.files.path", "/data/out"),
        (
            {**writing("/data/out"), "driver": mounting("persistentVolumeClaim")["driver"]},
            *("spec.joins[0].output.sink.files.path", "/data/out"),
        ),
    ],
)
def test_a_directory_in_a_pods_own_file_system_is_refused_with_the_remedy(spec: Object, field: str, value: str) -> None:
    problem = derive(streamjoin(**spec)).problem
    assert problem is not None
    assert problem[0] is Reason.InvalidSpec
    assert problem[1].startswith(f'{field}: "{value}" is in each pod' if f'"{value}"' in problem[1] else f"{field}: {value} is in each pod")
    assert "give an s3://, gs://, abfss:// or az:// URL, or a directory below /var/lib/streamjoin, where" in problem[1]


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"checkpoint": CLAIM, **writing("/var/lib/streamjoin/out")},
        {"checkpoint": CLAIM, **reading("file:///var/lib/streamjoin/in")},
        {**writing("/data/out"), **mounting("persistentVolumeClaim")},
        {**reading("/data/in"), **mounting("configMap")},
        {"checkpoint": {"location": "/data/state"}, **mounting("nfs")},
    ],
)
def test_a_directory_in_a_store_or_on_a_volume_that_all_pods_mount_is_taken(spec: Object) -> None:
    assert derive(streamjoin(**spec)).problem is None
