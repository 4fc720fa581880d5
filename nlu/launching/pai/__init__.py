"""Jobs on Alibaba Cloud's PAI: DLC and MaxCompute. The code goes there once, a job is a command line, results come back
through an object store."""
