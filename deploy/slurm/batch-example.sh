#!/bin/bash
#SBATCH --partition=gpu,gpu2
#SBATCH --account=rl
#SBATCH --qos=high
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=a100:4
#SBATCH --gres=shard:2
#SBATCH --cpus-per-task=16
#SBATCH --mem=128G
#SBATCH --time=1-08:00:00
#SBATCH --constraint=a100&nvlink
#SBATCH --nodelist=n3
#SBATCH --exclude=n1,n[20-22]
#SBATCH --reservation=res
#SBATCH --licenses=matlab:1
#SBATCH --exclusive
#SBATCH --nice=10
#SBATCH --begin=now+1hour
#SBATCH --job-name=rollyard-p-0
#SBATCH --comment=rollyard:s:u
#SBATCH --output=/d/job.log
#SBATCH --open-mode=append
#SBATCH --no-requeue
:  # sbatch looks for directives up to the first command: none in `setup` may replace ours
export ROLLYARD_ALLOCATION=/d
export A='it'"'"'s $HOME'
module load cuda
exec '/opt/a b/python' -m x
