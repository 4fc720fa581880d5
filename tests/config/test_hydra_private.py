"""What Hydra saves of a configuration holds no secrets."""

from hydra.core import utils
from omegaconf import OmegaConf

from nlu.config.hydra_private import hide_saved_configs


def test_files_that_hydra_saves_for_a_job_hold_no_secrets(tmp_path):
    hide_saved_configs()
    given = {
        "hydra": {
            "job": {"env_set": {"HF_TOKEN": "geheim", "OMP_NUM_THREADS": "1"}},
            "launcher": {"setup": ["export X=geheim"], "partition": "main"},
            "overrides": {"hydra": ["+hydra.job.env_set.HF_TOKEN=geheim"], "task": ["a={api_key: geheim}", "lr=1"]},
        },
        "url": "${oc.env:HF_TOKEN,null}",
    }
    utils._save_config(OmegaConf.create(given), "hydra.yaml", tmp_path)
    utils._save_config(OmegaConf.create(given["hydra"]["overrides"]["task"]), "overrides.yaml", tmp_path)
    read = OmegaConf.to_container(OmegaConf.load(tmp_path / "hydra.yaml"), resolve=False)
    assert "geheim" not in str(read) and read["url"] == given["url"]
    assert read["hydra"]["job"]["env_set"] == {"HF_TOKEN": "***", "OMP_NUM_THREADS": "1"}
    assert read["hydra"]["launcher"] == {"setup": ["***"], "partition": "main"}
    assert OmegaConf.to_container(OmegaConf.load(tmp_path / "overrides.yaml")) == ["a=***", "lr=1"]
