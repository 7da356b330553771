"""What a program sends, read from its text, against what its source says."""

import pytest

from benchmarks.communication import Collective, read_collectives, totals

PROGRAM = """HloModule jit_step, entry_computation_layout={(f32[4,8]{1,0})->f32[]}, num_partitions=8

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  ROOT %sum = f32[] add(%x, %y)
}

%inner (state: (s32[])) -> (s32[]) {
  %gathered = bf16[16]{0} all-gather(%part), replica_groups=[2,4]<=[8], dimensions={0}
  ROOT %next = (s32[], bf16[16]) tuple(%i, %gathered)
}

%body (state: (s32[])) -> (s32[]) {
  ROOT %loop = (s32[]) while(%state), condition=%go, body=%inner, backend_config={"known_trip_count":{"n":"3"}}
}

%go (state: (s32[], bf16[16])) -> pred[] {
  ROOT %on = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (x: f32[4,8]) -> f32[] {
  %x = f32[4,8]{1,0} parameter(0)
  %both = (f32[4,8]{1,0}, /*index=1*/pred[6]{0}) all-reduce(%x, %y), replica_groups={}, to_apply=%add
  %shares = f32[2]{0} reduce-scatter(%x), replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}, to_apply=%add
  %outer = (s32[], bf16[16]) while(%s), condition=%go, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  ROOT %out = f32[] copy(%z)
}
"""


def test_a_program_is_read():
    found = sorted(read_collectives(PROGRAM), key=lambda collective: collective.kind)
    assert found == [
        Collective("all-gather", num_bytes=32, group_size=4, times=15),
        Collective("all-reduce", num_bytes=4 * 8 * 4 + 6, group_size=8, times=1),
        Collective("reduce-scatter", num_bytes=8, group_size=4, times=1),
    ]
    assert totals(found)["all-gather"] == {"count": 1, "runs": 15, "bytes": 480, "sent_bytes": 360.0}


@pytest.mark.parametrize(("groups", "size"), [("{'data'}", 2), ("{'data','model'}", 8)])
def test_groups_are_named_by_axes_of_the_mesh(groups, size):
    program = PROGRAM.replace("replica_groups=[2,4]<=[8]", f"replica_groups=mesh['data'=2,'model'=4] {groups}")
    assert {found.kind: found.group_size for found in read_collectives(program)}["all-gather"] == size
