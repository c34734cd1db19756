"""The experiments of the paper, in the order in which they are built.

==================  ==========================================================================
`settings`          the settings of a run, which are also the options of the command
`presets`           defaults of all settings for a data set and a network
`studies`           sets of runs, one for each figure and table of the paper
`data`              data sets: download, verify, read, generate
`models`            the networks of the paper
`language`          a transformer that predicts characters
`building`          from settings to data, network and strategy
`depth`             blocks that are added while a network trains
`record`            the files and fields of a run's record
`parsing`           records to and from JSON
`run_directory`     writes the record, and resumes from it
`training`          the training loop
`run`               one run
`engines`           where runs are done: processes of this machine, a Ray cluster
`sweep`             all runs of a study
`estimates`         how long a sweep will take
`tuning`            searches for settings
`progress`          progress bars, lines and TensorBoard
`environment`       device, versions, commit
`signals`           Ctrl-C and SIGTERM
`files`             files that are written completely or not at all
`messages`          printing
`errors`            errors that the user can fix
==================  ==========================================================================
"""
